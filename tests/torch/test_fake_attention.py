"""Attention with the kernel that a card would choose: choices and bytes worked out by hand."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import tensorlens  # noqa: E402
from tensorlens.planning import find_card  # noqa: E402
from tensorlens.planning.torch import CudaScratch, attention  # noqa: E402
from tests import warm  # noqa: E402

aten = torch.ops.aten
A100 = find_card("a100-80gb")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ROOT = Path(__file__).parents[2]
SNAPSHOT = ROOT.parent / "shared" / "data" / "snapshots" / "attention_from_empty.pickle"


@pytest.fixture
def fake_tensors():
    with FakeTensorMode():
        yield


def on_card(*shape, dtype=BF16, grad=False):
    return torch.empty(shape, dtype=dtype, device="cuda", requires_grad=grad)


def choice(
    card,
    *,
    dtype=BF16,
    heads=8,
    key_heads=None,
    length=64,
    key_length=None,
    dimension=64,
    value_dimension=None,
    mask=None,
    dropout=0.0,
    causal=False,
    gqa=False,
    grad=False,
):
    keys, key_length = key_heads or heads, key_length or length
    query = on_card(2, heads, length, dimension, dtype=dtype, grad=grad)
    key = on_card(2, keys, key_length, dimension, dtype=dtype)
    value = on_card(2, keys, key_length, value_dimension or dimension, dtype=dtype)
    asked = attention.Attention(query, key, value, mask, dropout, causal, gqa)
    with attention.fused_attention(find_card(card)):
        return attention.choose(find_card(card), asked)


@pytest.mark.parametrize(
    ("card", "options", "expected"),
    [
        ("a100", {}, attention.FLASH),
        ("a100", {"dtype": FP16, "dropout": 0.1, "grad": True}, attention.FLASH),
        ("a100", {"dtype": FP32}, attention.EFFICIENT),
        ("a100", {"dtype": torch.float64}, attention.MATH),
        ("a100", {"dimension": 20}, attention.FLASH),
        ("a100", {"dimension": 264}, attention.EFFICIENT),
        ("a100", {"dimension": 20, "dtype": FP32}, attention.EFFICIENT),
        ("a100", {"dimension": 18, "dtype": FP32}, attention.MATH),
        ("a100", {"dimension": 264, "value_dimension": 12}, attention.MATH),
        ("a100", {"causal": True}, attention.FLASH),
        ("a100", {"causal": True, "key_length": 80}, attention.EFFICIENT),
        ("a100", {"gqa": True, "key_heads": 2}, attention.FLASH),
        ("a100", {"gqa": True, "key_heads": 2, "dtype": FP32}, attention.MATH),
        ("a100", {"gqa": True, "key_heads": 3}, attention.MATH),
        # head dimensions whose backward pass does not fit into the memory of these
        ("rtx 3090", {"dimension": 200}, attention.FLASH),
        ("rtx 3090", {"dimension": 200, "grad": True}, attention.EFFICIENT),
        ("rtx 3090", {"dimension": 240, "grad": True}, attention.FLASH),
        ("rtx 3090", {"dimension": 240, "grad": True, "dropout": 0.1}, attention.EFFICIENT),
        ("a100", {"dimension": 200, "grad": True}, attention.FLASH),
        # no flash attention before 8.0, and no bfloat16
        ("v100", {"dtype": FP16}, attention.EFFICIENT),
        ("v100", {"dtype": FP16, "dimension": 20}, attention.MATH),
        ("v100", {}, attention.MATH),
        ("t4", {"dtype": FP32, "dimension": 18}, attention.EFFICIENT),
        ("h100", {}, attention.FLASH),
        ("b200", {}, attention.FLASH),
        ("rtx 5090", {}, attention.FLASH),
        ("h100", {"dtype": FP32}, attention.EFFICIENT),
    ],
)
@pytest.mark.usefixtures("fake_tensors")
def test_the_kernel_that_the_card_would_choose(card, options, expected):
    assert choice(card, **options) == expected


@pytest.mark.usefixtures("fake_tensors")
def test_masks_are_for_others_than_flash():
    mask = on_card(64, 64, dtype=torch.bool)
    assert choice("a100", mask=mask) == attention.EFFICIENT
    strided = torch.empty_strided((64, 64), (128, 2), dtype=BF16, device="cuda")
    assert choice("a100", mask=strided) == attention.MATH


@pytest.mark.usefixtures("fake_tensors")
def test_disabled_attention_backends_are_not_used():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        assert choice("a100") == attention.MATH
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        assert choice("a100") == attention.EFFICIENT
    with (
        sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        pytest.raises(RuntimeError, match="No available kernel"),
    ):
        choice("a100", dtype=FP32)
    assert choice("a100") == attention.FLASH
    # flash attention stands for cuDNN's
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]):
        assert choice("h100") == attention.FLASH
        assert choice("a100") == attention.MATH


@pytest.mark.usefixtures("fake_tensors")
def test_four_dimensions_or_none_of_the_fused_kernels():
    query = on_card(4, 64, 64)
    asked = attention.Attention(query, query, query, None, 0.0, False, False)
    assert attention.choose(A100, asked) == attention.MATH


def taken(func, *args, card=A100):
    found = CudaScratch(card)(func, args, {}, None, 0)
    return [each.nbytes for each in found]


def heads_inside(*shape, dtype=BF16):
    """Return (batch, heads, length, dimension) that lies as (batch, length, heads, dimension)."""
    batch, heads, length, dimension = shape
    return on_card(batch, length, heads, dimension, dtype=dtype).transpose(1, 2)


FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_backward.default


@pytest.mark.usefixtures("fake_tensors")
def test_flash_backward_sums_in_float32():
    query = heads_inside(2, 4, 100, 40)
    rows = 2 * 4 * 128 * 4  # lengths in tiles of 128
    found = taken(FLASH_BACKWARD, query, query, query, query, query, None)
    assert found == [rows, rows * 64]  # head dimensions in tiles of 32


@pytest.mark.usefixtures("fake_tensors")
def test_flash_backward_copies_what_has_its_heads_outside():
    query = on_card(2, 4, 100, 40)
    found = taken(FLASH_BACKWARD, query, query, query, query, query, None)
    assert found[:2] == [2 * 4 * 100 * 40 * 2] * 2
    assert len(found) == 4


@pytest.mark.usefixtures("fake_tensors")
def test_flash_backward_has_gradients_for_each_head_of_a_group():
    query, key = heads_inside(2, 4, 100, 40), heads_inside(2, 2, 70, 40)
    found = taken(FLASH_BACKWARD, query, query, key, key, query, None)
    assert found[2:] == [2 * 70 * 4 * 40 * 2] * 2


@pytest.mark.usefixtures("fake_tensors")
@pytest.mark.parametrize(("kernel", "card"), [("efficient", "a100"), ("flash", "h100")])
def test_other_kernels_take_about_the_same(kernel, card):
    func = getattr(aten, f"_scaled_dot_product_{kernel}_attention_backward").default
    query = heads_inside(2, 4, 128, 64)
    rows, sums = CudaScratch(find_card(card))(func, (query,) * 5, {}, None, 0)
    assert rows.nbytes == 2 * 4 * 128 * 4
    size = rows.nbytes * 64
    assert (sums.least, sums.nbytes, sums.most) == (0, size, 3 * size)


# --- whole runs, each in a process of its own that has a card -------------------------------------

STAGE = """
import json, math, sys
from tensorlens.native import NativeUnavailable
from tensorlens.planning import find_card
from tensorlens.planning.torch import prepare
card = find_card(sys.argv[1])
try:
    prepare(card)
except NativeUnavailable as error:
    print(json.dumps({"skip": str(error)}))
    sys.exit()
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from tensorlens.planning.allocators import CachingAllocator
from tensorlens.planning.torch import attention as attentions
from tensorlens.planning import caution_scope
from tensorlens.planning.torch import ProgramStacks, node_stacks
from tensorlens.planning.torch import CudaScratch
from tensorlens.planning.torch import Tracker
from tensorlens.records import ALLOC, FREE
from tensorlens.planning import Trace

told, answer = [], {}
F = torch.nn.functional

def track(program):
    trace = Trace()
    stacks = ProgramStacks(trace.log.stacks)
    with (
        caution_scope(told.append),
        attentions.fused_attention(card),
        FakeTensorMode(allow_non_fake_inputs=True),
        stacks,
        node_stacks(stacks),
        Tracker(trace, stacks, CudaScratch(card)) as tracker,
    ):
        stacks.call_program(program)
    return trace, tracker

def operators(trace):
    return {each.op for each in trace.log.contexts}

def peaks(trace):
    allocator, places, log = CachingAllocator(), {}, trace.log
    for row, kind in enumerate(log.kind):
        if log.devices[log.device[row]] == "cpu":
            continue
        if kind == ALLOC:
            places[log.address[row]] = allocator.malloc(log.size[row])
        elif kind == FREE:
            allocator.free(places.pop(log.address[row]))
    figures = allocator.figures
    return figures.allocated.peak, figures.reserved.peak
"""


def run(program, card="a100-80gb"):
    code = STAGE + textwrap.dedent(program) + "\nprint(json.dumps(answer))\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("CUBLAS_WORKSPACE_CONFIG", None)
    done = subprocess.run(
        [*warm.python(device=True), "-c", code, card],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    if "skip" in answer:
        pytest.skip(f"no fake CUDA device here: {answer['skip']}")
    return answer


def test_a_training_step_of_flash_attention_to_the_byte():
    answer = run(
        """
        def program():
            query, key, value = (
                torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                for _ in range(3)
            )
            output = F.scaled_dot_product_attention(query, key, value)
            output.backward(torch.ones_like(output))

        trace, tracker = track(program)
        answer = {"peak": tracker.peaks["cuda:0"], "operators": sorted(operators(trace))}
        """
    )
    tensor = 2 * 4 * 128 * 64 * 2
    rows = 2 * 4 * 128 * 4
    forward = 3 * tensor + tensor + rows + 2 * 512  # inputs, output, logsumexp, seed and offset
    copies = 2 * tensor  # of the gradient and of the output
    backward = tensor + copies + 3 * tensor + rows + rows * 64
    assert answer["peak"] == forward + backward == 1_582_080
    assert "aten::_scaled_dot_product_flash_attention" in answer["operators"]


@pytest.mark.parametrize(("card", "kernel"), [("t4", "efficient"), ("a100", "flash")])
def test_modules_and_heads_in_groups_take_the_kernel(card, kernel):
    answer = run(
        """
        def program():
            half = torch.float16
            layer = torch.nn.MultiheadAttention(64, 2, batch_first=True, device="cuda", dtype=half)
            batch = torch.randn(2, 16, 64, device="cuda", dtype=half)
            layer(batch, batch, batch, need_weights=False)[0].sum().backward()
            layer.eval()
            with torch.no_grad():
                layer(batch, batch, batch, need_weights=False)
            query = torch.randn(2, 8, 16, 64, device="cuda", dtype=half)
            key = query[:, :2]
            with torch.inference_mode():
                F.scaled_dot_product_attention(query, query, query)
            if card.capability >= (8, 0):
                out = F.scaled_dot_product_attention(query, key, key, enable_gqa=True)
                answer["grouped"] = list(out.shape)

        trace, _ = track(program)
        answer["operators"] = sorted(each for each in operators(trace) if each)
        """,
        card,
    )
    assert f"aten::_scaled_dot_product_{kernel}_attention" in answer["operators"]
    assert f"aten::_scaled_dot_product_{kernel}_attention_backward" in answer["operators"]
    assert "aten::bmm" not in answer["operators"]
    assert answer.get("grouped", [2, 8, 16, 64]) == [2, 8, 16, 64]


def test_head_dimensions_and_masks_are_filled_up():
    answer = run(
        """
        def program():
            half = torch.randn(2, 4, 16, 20, device="cuda", dtype=torch.bfloat16)
            answer["flash"] = list(F.scaled_dot_product_attention(half, half, half).shape)
            mask = torch.ones(16, 13, dtype=torch.bool, device="cuda")
            query = torch.randn(2, 4, 16, 32, device="cuda")
            key = torch.randn(2, 4, 13, 32, device="cuda")
            answer["efficient"] = list(F.scaled_dot_product_attention(query, key, key, mask).shape)

        trace, _ = track(program)
        log = trace.log
        answer["filled"] = [
            log.size[row]
            for row, kind in enumerate(log.kind)
            if kind == ALLOC and log.contexts[log.context[row]].op == "aten::constant_pad_nd"
        ]
        """
    )
    assert answer["flash"] == [2, 4, 16, 20] and answer["efficient"] == [2, 4, 16, 32]
    # three times 20 to 24 numbers of 2 bytes; rows of 13 numbers to 16
    assert answer["filled"] == [2 * 4 * 16 * 24 * 2] * 3 + [16 * 16 * 4]


def test_flex_attention_is_one_kernel_and_says_so():
    answer = run(
        """
        from torch.nn.attention import flex_attention as flex
        original = flex.flex_attention

        def program():
            query = torch.randn(2, 4, 128, 64, device="cuda", requires_grad=True)
            output, rows = flex.flex_attention(query, query, query, return_lse=True)
            answer["shapes"] = [list(output.shape), list(rows.shape)]
            if hasattr(flex, "AuxRequest"):
                # torch 2.9 and later, as transformers asks
                output, aux = flex.flex_attention(
                    query, query, query, return_aux=flex.AuxRequest(lse=True)
                )
                answer["shapes"].append([list(output.shape), list(aux.lse.shape), aux.max_scores])
            output.sum().backward()

        trace, _ = track(program)
        answer["told"] = [*dict.fromkeys(told)]
        answer["restored"] = flex.flex_attention is original
        """
    )
    shapes = [[2, 4, 128, 64], [2, 4, 128]]
    assert answer["shapes"] in (shapes, [*shapes, [*shapes, None]])
    assert len(answer["told"]) == 1 and answer["told"][0].startswith("flex_attention")
    assert answer["restored"]


def test_the_published_trace_follows_from_its_program():
    """Q, K, V of (8, 4096, 16) in float32, forward and backward, by hand: to the byte."""
    if not SNAPSHOT.is_file():
        pytest.skip(f"the measured snapshot is not beside the checkout: no {SNAPSHOT.name}")
    recording = tensorlens.load(SNAPSHOT)
    peak = recording.peak("cuda:0")
    allocated = peak.held or peak.bytes
    reserved = sum(each.size for each in recording.log.segments)
    answer = run(
        """
        def softmax(scores):
            shifted = torch.exp(scores - torch.max(scores, dim=-1, keepdim=True)[0])
            return shifted / torch.sum(shifted, dim=-1, keepdim=True)

        def attention(query, key, value):
            scores = torch.einsum("bqd,bkd->bqk", query, key) / math.sqrt(query.shape[-1])
            weights = softmax(scores)
            return torch.einsum("bqk,bkd->bqd", weights, value)

        def program():
            query, key, value = (
                torch.randn(8, 4096, 16, device="cuda", requires_grad=True) for _ in range(3)
            )
            loss = attention(query, key, value).sum()
            loss.backward()

        trace, _ = track(program)
        answer["peaks"] = peaks(trace)
        """
    )
    assert answer["peaks"] == [pytest.approx(allocated, rel=0.005), pytest.approx(reserved, 0.005)]
