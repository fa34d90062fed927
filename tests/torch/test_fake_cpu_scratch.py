"""What kernels of the CPU take for themselves, found by running them on zeros."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from tensorlens.frameworks.torch import Adapter
from tensorlens.planning.torch import cpu_scratch

aten = torch.ops.aten


@pytest.fixture
def kernels():
    found = cpu_scratch.CpuScratch.here()
    if found is None:
        pytest.skip("; ".join(Adapter().notes()))
    return found


def convolution(batch):
    image, weight = torch.empty(batch, 8, 32, 32), torch.empty(24, 8, 3, 3)
    return image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1


def taken_by(program):
    """Return the bytes that a program takes at its peak, beyond those of its result."""
    counter = Adapter().cpu_counter()
    read = counter.reader()
    before, *_ = read()
    result = program()
    return read()[1] - before - result.nbytes


def asked(kernels, func, make):
    with FakeTensorMode():
        return sum(each.nbytes for each in kernels(func, make(), {}, None, 0))


def test_convolution_scratch(kernels):
    images, weights = torch.rand(4, 8, 32, 32), torch.rand(24, 8, 3, 3)
    with torch.no_grad():
        truth = taken_by(lambda: F.conv2d(images, weights, padding=1))
    found = asked(kernels, aten.convolution.default, lambda: convolution(4))
    assert found == truth > 0


def test_large_convolution_scratch_is_extrapolated(kernels, monkeypatch):
    whole = asked(kernels, aten.convolution.default, lambda: convolution(32))
    one_image = 32 * 32 * 24 * 8 * 9
    monkeypatch.setattr(cpu_scratch, "MAX_PRODUCTS", 8 * one_image)
    ran = []
    monkeypatch.setattr(
        cpu_scratch._Operand, "zeros", _noting(cpu_scratch._Operand.zeros, ran), raising=True
    )
    reduced = cpu_scratch.CpuScratch(kernels._allocator)
    assert asked(reduced, aten.convolution.default, lambda: convolution(32)) == whole
    assert [shape[0] for shape in ran if shape[1:] == (8, 32, 32)] == [8, 4]


def _noting(zeros, ran):
    def noted(operand):
        ran.append(operand.shape)
        return zeros(operand)

    return noted


def test_a_product_in_single_precision_takes_nothing(kernels):
    def product(dtype):
        return lambda: (torch.empty(64, 512, dtype=dtype).t(), torch.empty(64, 256, dtype=dtype))

    assert asked(kernels, aten.mm.default, product(torch.float32)) == 0
    one = torch.rand(64, 512).bfloat16().t()
    other = torch.rand(64, 256).bfloat16()
    truth = taken_by(lambda: torch.mm(one, other))
    assert asked(kernels, aten.mm.default, product(torch.bfloat16)) == truth


def test_autocast_does_not_change_scratch(kernels):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = asked(kernels, aten.convolution.default, lambda: convolution(4))
    assert found == asked(
        cpu_scratch.CpuScratch(kernels._allocator),
        aten.convolution.default,
        lambda: convolution(4),
    )


def test_unmeasurable_scratch_is_unknown(kernels, monkeypatch):
    monkeypatch.setattr(cpu_scratch, "MAX_BYTES", 1 << 10)
    assert asked(kernels, aten.convolution.default, lambda: convolution(4)) == 0
    mismatched = (torch.empty(2, 3, dtype=torch.bfloat16), torch.empty(5, 7, dtype=torch.bfloat16))
    with FakeTensorMode():
        assert kernels(aten.mm.default, mismatched, {}, None, 0) == ()


def rnn_layer(steps, batch_first=False):
    batch, size, hidden = 5, 16, 8
    weights = torch.empty(4 * hidden, size), torch.empty(4 * hidden, hidden)
    biases = torch.empty(4 * hidden), torch.empty(4 * hidden)
    states = torch.empty(batch, hidden), torch.empty(batch, hidden)
    # torch gives time first to both
    source = torch.empty(steps, batch, size)
    if batch_first:
        source = torch.empty(batch, steps, size).transpose(0, 1)
    mode, layers, has_biases, is_bidirectional, is_trained = 2, 2, True, False, True
    sizes = mode, hidden, layers, has_biases, is_bidirectional, batch_first, is_trained
    return (source, *weights, *biases, *states, False, [], *sizes)


@pytest.mark.parametrize("batch_first", [False, True])
def test_recurrent_workspace_and_scratch(kernels, batch_first):
    real = torch.ops.aten.mkldnn_rnn_layer.default
    args = [
        torch.zeros_like(each) if isinstance(each, torch.Tensor) else each
        for each in rnn_layer(7, batch_first)
    ]
    read = Adapter().cpu_counter().reader()
    before, *_ = read()
    made = real(*args)
    peak = read()[1] - before
    with kernels.rnn_workspaces(), FakeTensorMode():
        fakes = rnn_layer(7, batch_first)
        found = real(*fakes)
        (own,) = kernels(real, fakes, {}, found, 0)
    assert [each.shape for each in found] == [each.shape for each in made]
    assert found[-1].nbytes == made[-1].nbytes > 0
    assert own.nbytes == peak - sum(each.untyped_storage().nbytes() for each in made)


def test_long_sequence_scratch_is_extrapolated(kernels, monkeypatch):
    def kept(steps):
        with FakeTensorMode():
            return aten.mkldnn_rnn_layer.default(*rnn_layer(steps))[-1].nbytes

    with kernels.rnn_workspaces():
        short, shorter = kept(64), kept(32)
        # 5 rows a step times the numbers of both weights: no more than 64 steps are run
        monkeypatch.setattr(cpu_scratch, "MAX_PRODUCTS", 64 * 5 * (32 * 16 + 32 * 8))
        assert kept(128) == short + (short - shorter) * (128 - 64) // (64 - 32)
