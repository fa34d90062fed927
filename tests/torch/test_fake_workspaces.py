"""Workspaces of CUDA's libraries: bytes worked out by hand from the rules of torch 2.13."""

from __future__ import annotations

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from tensorlens.planning import find_card  # noqa: E402
from tensorlens.planning.torch import CudaScratch, cublas_workspace, rnn_reserve  # noqa: E402

aten = torch.ops.aten
A100, H100, V100 = (find_card(name) for name in ("a100-80gb", "h100", "v100"))
SMALL = (4096 * 2 + 16 * 8) * 1024
LARGE = 32 * 2**20


@pytest.fixture(autouse=True)
def fake_tensors():
    with FakeTensorMode():
        yield


def on_card(*shape, dtype=torch.float32, **options):
    return torch.empty(shape, dtype=dtype, device="cuda", **options)


def taken(workspaces, func, *args, thread=0, result=None, **kwargs):
    found = workspaces(func, args, kwargs, result, thread)
    return [(each.least, each.nbytes, each.most) for each in found]


def multiplied(workspaces, thread=0, func=None, **options):
    left, right = on_card(3, 5, **options), on_card(5, 4, **options)
    result = on_card(3, 4, **options)
    return taken(workspaces, func or aten.mm.default, left, right, thread=thread, result=result)


def test_each_thread_takes_one_workspace_and_keeps_it():
    workspaces = CudaScratch(A100, {})
    assert SMALL == 8_519_680
    (hidden,) = workspaces(aten.mm.default, (on_card(2, 3), on_card(3, 4)), {}, on_card(2, 4), 0)
    assert (hidden.nbytes, hidden.is_kept, hidden.name) == (SMALL, True, "cuBLAS workspace")
    assert multiplied(workspaces, thread=0) == []
    assert multiplied(workspaces, thread=1) == [(SMALL, SMALL, SMALL)]
    assert multiplied(workspaces, thread=1) == []


def test_cublas_workspace_by_card():
    nbytes = {}
    for major in (7, 8, 9, 10, 11, 12):
        card = dataclasses.replace(A100, capability=(major, 0))
        nbytes[major] = cublas_workspace(card, {})
    assert nbytes == {7: SMALL, 8: SMALL, 9: LARGE, 10: LARGE, 11: SMALL, 12: LARGE}


def test_workspace_of_h100_is_large():
    assert multiplied(CudaScratch(H100, {})) == [(LARGE, LARGE, LARGE)]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [(":4096:8", LARGE), (":16:8", 16 * 8 * 1024), (":4096:2:16:8", SMALL), ("nonsense", SMALL)],
)
def test_the_variable_counts(text, nbytes):
    workspaces = CudaScratch(A100, {"CUBLAS_WORKSPACE_CONFIG": text})
    assert multiplied(workspaces) == [(nbytes, nbytes, nbytes)]


def test_no_workspace_without_cublas():
    workspaces = CudaScratch(A100, {})
    assert multiplied(workspaces, dtype=torch.int64) == []
    empty, some = on_card(0, 5), on_card(5, 4)
    assert taken(workspaces, aten.mm.default, empty, some, result=on_card(0, 4)) == []
    assert taken(workspaces, aten.add.Tensor, some, some, result=some) == []
    host = torch.empty(3, 3)
    assert taken(workspaces, aten.mm.default, host, host, result=host) == []
    assert len(multiplied(workspaces, dtype=torch.bfloat16)) == 1


def convolved(card, source, weight, groups=1, transposed=False):
    side = 10 if transposed else 6
    result = on_card(source.size(0), weight.size(0), side, side)
    args = (source, weight, None, [1, 1], [0, 0], [1, 1], transposed, [0, 0], groups)
    func = aten.convolution.default
    return taken(CudaScratch(card), func, *args, result=result)


def test_a_convolution_takes_between_nothing_and_another_layout():
    # 2 x 32 x 64 and 4 x 32 x 9 and 2 x 32 x 36 numbers: channels in tiles of 32
    most = 4 * (2 * 32 * 64 + 4 * 32 * 9 + 2 * 32 * 36)
    # the input with three channels filled up to four
    likely = 4 * (2 * 4 * 64)
    source, weight = on_card(2, 3, 8, 8), on_card(4, 3, 3, 3)
    assert convolved(A100, source, weight) == [(0, likely, most)]
    # without tensor cores for float32 operands and result, channels filled up to four
    all_three = 4 * (2 * 4 * 64 + 4 * 4 * 9 + 2 * 4 * 36)
    assert convolved(V100, source, weight) == [(0, all_three, most)]


def test_one_pixel_filters_are_matrix_products():
    most = 4 * (2 * 32 * 64 + 4 * 32 + 2 * 32 * 36)
    operands = 4 * (2 * 32 * 64 + 4 * 32)
    source, weight = on_card(2, 3, 8, 8), on_card(4, 3, 1, 1)
    assert convolved(A100, source, weight) == [(0, operands, most)]
    # without tensor cores for float32 they are read where they lie
    assert convolved(V100, source, weight) == [(0, 0, most)]


def test_channels_last_needs_no_other_layout():
    form = torch.channels_last
    source = on_card(2, 3, 8, 8).to(memory_format=form)
    weight = on_card(4, 3, 3, 3).to(memory_format=form)
    ((least, likely, most),) = convolved(A100, source, weight)
    assert (least, likely) == (0, 0) and most > 0


def test_depthwise_convolutions_of_torch_take_nothing():
    assert convolved(A100, on_card(2, 4, 8, 8), on_card(4, 1, 3, 3), groups=4) == []


def test_transposed_depthwise_convolutions_are_of_cudnn():
    source, weight, result = on_card(2, 4, 8, 8), on_card(4, 1, 3, 3), on_card(2, 4, 10, 10)
    # the input, whose four channels are one tile of four
    likely = 4 * (2 * 4 * 64)
    most = 4 * (2 * 32 * 64 + 4 * 32 * 9 + 2 * 32 * 100)
    assert convolved(A100, source, weight, 4, transposed=True) == [(0, likely, most)]
    # the gradient of the result, for either pass
    likely = 4 * (2 * 4 * 100)
    options = ([1, 1], [0, 0], [1, 1], True, [0, 0], 4, [True, True, False])
    args = (result, source, weight, None, *options)
    func = aten.convolution_backward.default
    assert taken(CudaScratch(A100), func, *args) == [(0, likely, most)]


def test_non_contiguous_input_is_copied():
    source = on_card(2, 8, 3, 8).transpose(1, 2)
    found = convolved(A100, source, on_card(4, 3, 3, 3))
    assert found[0] == (1536,) * 3  # 2 x 3 x 8 x 8 numbers
    assert len(found) == 2


def test_backward_takes_the_larger_of_its_two_passes():
    source, weight, gradient = on_card(2, 3, 8, 8), on_card(4, 3, 3, 3), on_card(2, 4, 6, 6)

    def backward(*wanted):
        args = (gradient, source, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted)
        func = aten.convolution_backward.default
        return taken(CudaScratch(A100), func, *args, result=(source, weight, None))

    most = 4 * (2 * 32 * 64 + 4 * 32 * 9 + 2 * 32 * 36)
    assert backward(True, False, False) == [(0, 4 * 2 * 4 * 36, most)]
    assert backward(False, True, False) == [(0, 4 * 2 * 4 * 64, most)]
    assert backward(True, True, False) == [(0, 4 * 2 * 4 * 64, most)]
    assert backward(False, False, True) == []


LSTM, GRU = 2, 3


@pytest.mark.parametrize(("mode", "gates"), [(LSTM, 4), (GRU, 3), (0, 1)])
def test_recurrent_networks_take_the_gates_of_a_layer(mode, gates):
    source, hx = on_card(5, 2, 8), on_card(4, 2, 16)
    args = (source, [], 4, None, hx, hx, mode, 16, 0, 2, False, 0.0, True, True, [], None)
    layer = 5 * 2 * 16 * gates * 4 * 2  # of both directions
    found = taken(CudaScratch(A100), aten._cudnn_rnn.default, *args)
    assert found == [(0, layer, 2 * layer)]


def test_lstm_reserve_by_hand():
    assert rnn_reserve(LSTM, 5 * 2 * 16, 2, 4) == 5 * 2 * 16 * 2 * 6 * 4
    assert rnn_reserve(LSTM, 5 * 2 * 16, 2, 4, 0.5) == 5 * 2 * 16 * 2 * 6 * 4 + 5 * 2 * 16
