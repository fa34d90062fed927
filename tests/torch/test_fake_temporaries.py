"""What CUDA kernels take besides their results: figures by hand from torch's sources."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests import warm

ROOT = Path(__file__).parents[2]
MIB = 1 << 20

_HEAD = """
import json, sys
from tensorlens.native import NativeUnavailable
from tensorlens.planning.torch import prepare
from tensorlens import Card
card = Card("NVIDIA A100-SXM4-80GB", (8, 0), 108, 80 << 30)
try:
    prepare(card=card)
except NativeUnavailable as error:
    print(json.dumps({"skip": str(error)}))
    sys.exit()
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from tensorlens.planning.torch import ProgramStacks
from tensorlens.planning.torch import CudaScratch
from tensorlens.planning.torch import calibrate
from tensorlens.planning.torch import Tracker
from tensorlens.planning.torch import value_patches
from tensorlens.planning import Trace
calibrate()
temporaries = CudaScratch(card)
found = {}
current = []

def hidden(func, args, kwargs, result, thread):
    taken = temporaries(func, args, kwargs, result, thread)
    for each in taken:
        current.append([each.nbytes, each.least, each.most, each.name, each.is_taken_first])
    return taken

trace = Trace()

def case(name, run):
    current.clear()
    begin = len(trace.log)
    run()
    found[name] = list(current)
    made = [row for row in range(begin, len(trace.log)) if trace.log.kind[row] == 1]
    contexts = trace.log.contexts
    allocated[name] = [
        [contexts[trace.log.context[row]].op, trace.log.size[row]] for row in made
    ]

allocated = {}

def randn(*shape, grad=False, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=grad)

def ids(most, *shape):
    return torch.randint(0, most, shape, device="cuda")

def cases():
"""

_TAIL = """
stacks = ProgramStacks(trace.log.stacks)
with (
    value_patches(),
    FakeTensorMode(allow_non_fake_inputs=True),
    stacks,
    torch.autograd.set_multithreading_enabled(False),
    Tracker(trace, stacks, hidden),
):
    cases()
print(json.dumps({"found": found, "allocated": allocated}))
"""

_CASES = """
aten = torch.ops.aten
x = randn(64, 128)
case("nothing", lambda: torch.relu(x + x))
case("softmax_backward", lambda: aten._softmax_backward_data(x, x, 1, torch.float32))
case("log_softmax_backward", lambda: aten._log_softmax_backward_data(x, x, 1, torch.float32))
few, many = ids(1000, 3072), ids(1000, 3073)
case("few_embedded", lambda: aten.embedding_dense_backward(randn(3072, 8), few, 1000, -1, False))
case("many_embedded", lambda: aten.embedding_dense_backward(randn(3073, 8), many, 1000, -1, False))
case("sum_bool", lambda: (x > 0).sum())
case("sum_bf16", lambda: x.bfloat16().sum(-1, dtype=torch.float32))
case("sum_rows", lambda: randn(16384, 4096).sum(0))
case("sum_few_rows", lambda: randn(1020, 4096).sum(0))
case("sum_little", lambda: x.sum(-1))
case("sort_short", lambda: randn(10, 4096).sort(-1))
case("sort_long", lambda: randn(200, 5000).sort(-1))
case("log_sum_exp", lambda: torch.logsumexp(x, -1))
case("mse", lambda: F.mse_loss(x, x))
case("mse_none", lambda: F.mse_loss(x, x, reduction="none"))
case("bce", lambda: F.binary_cross_entropy(x.sigmoid(), x))
case("topk_transposed", lambda: x.t().topk(2))
table = randn(50, 4, grad=True)
where = ids(50, 100)
taken = table[where]
case("index_backward", lambda: taken.backward(torch.ones_like(taken)))
host = torch.ones(10, 10)
case("on_host", lambda: aten._softmax_backward_data(host, host, 1, torch.float32))
case("rms_norm", lambda: F.rms_norm(randn(64, 128, grad=True), (128,)))
for name in ("silu", "mish"):
    gated = getattr(F, name)(randn(64, 128, grad=True))
    case(name, lambda: gated.backward(torch.ones_like(gated)))
h = randn(32, 32, grad=True).exp()
both = h.sin() * h.cos()
case("added_in_place", lambda: both.backward(torch.ones_like(both)))
g = randn(32, 32, grad=True)
wide = g.gather(1, ids(32, 32, 4))
case("gathered", lambda: wide.backward(torch.ones_like(wide)))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    program = _HEAD + textwrap.indent(_CASES, "    ") + _TAIL
    done = subprocess.run(
        [*warm.python(device=True), "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "skip" in result:
        pytest.skip(result["skip"])
    return result


@pytest.fixture
def sizes(answers: dict[str, Any]) -> dict[str, list[int]]:
    return {name: [each[0] for each in taken] for name, taken in answers["found"].items()}


def test_most_operators_take_nothing(sizes: dict[str, list[int]]) -> None:
    assert sizes["nothing"] == []
    assert sizes["log_softmax_backward"] == []
    assert sizes["mse_none"] == []
    assert sizes["sum_little"] == sizes["sum_few_rows"] == []


def test_the_gradient_of_softmax_is_multiplied_out(sizes: dict[str, list[int]]) -> None:
    assert sizes["softmax_backward"] == [64 * 128 * 4]
    assert sizes["on_host"] == []


def test_embeddings_are_summed_by_sorted_indices(answers: dict[str, Any]) -> None:
    assert answers["found"]["few_embedded"] == []
    # 3073 indices of a table of 1000 rows: 307 + 1000 parts of 8 floats
    assert [[each[0], each[4]] for each in answers["found"]["many_embedded"]] == [
        [3073 * 8, True],
        [3073 * 8, True],
        [3073 * 8, False],
        [8, False],
        [1000 * 8, False],
        [1000 * 8, False],
        [8, False],
        [1307 * 8, False],
        [1307 * 8 * 4, False],
    ]


def test_a_sum_down_columns_that_blocks_share_has_a_buffer(sizes: dict[str, list[int]]) -> None:
    # the columns of (16384, 4096) by fours: 32 x 4 threads make 32 x 4 columns, 4096 values each;
    # 32 blocks across, up to 16 x 108 fit, so 54 share each column
    assert sizes["sum_rows"] == [4096 * 54 * 32 * 4 * 4]


def test_sum_casts_its_input(sizes: dict[str, list[int]]) -> None:
    assert sizes["sum_bool"] == [64 * 128 * 8]
    assert sizes["sum_bf16"] == []


def test_long_sorts_keep_keys_and_places_twice(answers: dict[str, Any]) -> None:
    assert answers["found"]["sort_short"] == []
    size = 10**6 * (4 + 2 * 8)
    assert answers["found"]["sort_long"] == [[size, size, 2 * size, "sorting", False]]


def test_losses_are_written_out_before_they_are_reduced(answers: dict[str, Any]) -> None:
    sizes = {name: [each[0] for each in taken] for name, taken in answers["found"].items()}
    assert sizes["mse"] == [64 * 128 * 4]
    assert sizes["log_sum_exp"] == [64 * 128 * 4]
    made = dict(answers["allocated"]["bce"])
    assert made["aten::binary_cross_entropy"] == 64 * 128 * 4


def test_arguments_with_gaps_are_copied(sizes: dict[str, list[int]]) -> None:
    assert sizes["topk_transposed"] == [64 * 128 * 4]


def test_index_backward_sorts_indices(sizes: dict[str, list[int]]) -> None:
    assert sizes["index_backward"] == [6 * 100 * 8]


def test_autograd_adds_in_place_as_on_real_tensors(answers: dict[str, Any]) -> None:
    assert "aten::add" not in dict(answers["allocated"]["added_in_place"])
    assert "aten::scatter_add" not in dict(answers["allocated"]["gathered"])
    assert "aten::index_put" not in [
        name for name, size in answers["allocated"]["index_backward"] if size == 50 * 4 * 4
    ]


def test_cuda_kernel_is_not_decomposed(answers: dict[str, Any]) -> None:
    made = answers["allocated"]["rms_norm"]
    of_kernel = [size for name, size in made if name == "aten::_fused_rms_norm"]
    assert of_kernel == [64 * 128 * 4, 64 * 4]
    assert not any(name == "aten::pow" for name, _ in made)
    for name in ("silu", "mish"):
        assert answers["allocated"][name] == [
            ["aten::ones_like", 64 * 128 * 4],
            [f"aten::{name}_backward", 64 * 128 * 4],
        ]
