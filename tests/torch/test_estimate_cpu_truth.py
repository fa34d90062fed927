"""Estimates for host memory against what the counting allocator hands out to the same programs."""

import copy
import functools
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tensorlens.frameworks.torch import Adapter, TorchAllocator
from tensorlens.planning import Runner, processes
from tensorlens.planning.estimate import api
from tests import warm
from tests.benchmarks import accuracy_cpu

NUMBER = (8, 4)
"""A Python number in an operation: a tensor of 8 bytes, and what it is cast to."""
NUMBERS_AT_ONCE = 64

PROGRAMS = {program.__name__: program for program in accuracy_cpu.PROGRAMS}


def named(name):
    """One program that is any of them: they are estimated in one process, one after the other."""
    return {**PROGRAMS, **globals()}[name]()


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(processes, "interpreter", warm.python)


@functools.cache
def compared(name):
    if not isinstance(Adapter().cpu_counter(), TorchAllocator):
        pytest.skip("; ".join(Adapter().notes()))
    if name == "gpt":
        pytest.importorskip("transformers")
    return accuracy_cpu.compare(named, name=name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_bytes_after_each_step_are_exact(name):
    comparison = compared(name)
    assert len(comparison.estimated.ends) == accuracy_cpu.STEPS + 1
    assert comparison.estimated.ends == comparison.measured.ends


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_setup_asks_for_the_same_sizes_in_the_same_order(name):
    comparison = compared(name)
    estimated, measured = (
        [size for size, _ in each.requests[0]]
        for each in (comparison.estimated, comparison.measured)
    )
    assert estimated == measured
    assert comparison.estimated.peaks[0] == comparison.measured.peaks[0]


@pytest.mark.parametrize("name", ["mlp", "checkpointed", "checkpointed_reentrant"])
def test_every_request_but_of_numbers_is_estimated_in_its_order(name):
    # compare().own raises where one is missing or out of turn; checkpoints keep random states
    for step in compared(name).own:
        assert {size for size, _ in step} <= set(NUMBER)


@pytest.mark.parametrize("name", ["gpt", "small_resnet"])
def test_bf16_and_convolution_scratch_is_in_the_peak(name):
    comparison = compared(name)
    for estimated, measured in zip(
        comparison.estimated.peaks, comparison.measured.peaks, strict=True
    ):
        assert 0 <= measured - estimated <= NUMBERS_AT_ONCE


def test_recurrent_scratch_is_in_the_peak():
    comparison = compared("lstm")
    # of the first step the peak is another one: the optimizer has no state yet
    for estimated, measured in zip(
        comparison.estimated.peaks[2:], comparison.measured.peaks[2:], strict=True
    ):
        assert 0 <= measured - estimated <= NUMBERS_AT_ONCE


@pytest.mark.parametrize("name", ["small_resnet", "lstm"])
def test_only_kernels_own_memory_is_missing(name):
    comparison = compared(name)
    pairs = zip(comparison.estimated.requests, comparison.measured.requests, strict=True)
    for estimated, measured in pairs:
        sizes = Counter(size for size, _ in estimated)
        sizes.subtract(size for size, _ in measured)
        assert not +sizes


def test_peaks_differ_by_numbers_alone():
    comparison = compared("mlp")
    for estimated, measured in zip(
        comparison.estimated.peaks, comparison.measured.peaks, strict=True
    ):
        assert 0 <= measured - estimated <= sum(NUMBER)


def copied():
    layer, x = nn.Linear(16, 16), torch.randn(4, 16)
    net = nn.Sequential(layer, copy.deepcopy(layer), copy.deepcopy(layer))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()

    return step


def test_parameters_of_copied_modules_are_there_once():
    comparison = compared("copied")
    setups = comparison.estimated.requests[0], comparison.measured.requests[0]
    estimated, measured = ([size for size, _ in setup] for setup in setups)
    assert estimated == measured
    assert comparison.estimated.ends == comparison.measured.ends
    for step in comparison.own:
        assert {size for size, _ in step} <= set(NUMBER)


def reduced():
    layer, x, y = nn.Linear(16, 16), torch.rand(32, 16), torch.rand(32, 16)
    losses = F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss, F.binary_cross_entropy
    kept = []

    def step():
        made = layer(x).sigmoid()
        kept[:] = [loss(made, y).detach() for loss in (*losses, F.l1_loss, F.huber_loss)]
        kept.append(F.mse_loss(made, y, reduction="none").detach())

    return step


def test_reduced_losses_keep_the_memory_of_each_element():
    comparison = compared("reduced")
    # a layer and its two batches; five losses of 32 rows of 16 numbers, and two of one number
    setup, elements = 4 * (16 * 16 + 16 + 2 * 32 * 16), 4 * 32 * 16
    ends = [setup, *[setup + 5 * elements + 2 * 4] * accuracy_cpu.STEPS]
    assert comparison.measured.ends == ends
    assert comparison.estimated.ends == ends


def tied():
    embedding, head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
    head.weight = embedding.weight
    tokens = torch.randint(0, 50, (2, 16))

    def step():
        embedding.weight.grad = None
        F.cross_entropy(head(embedding(tokens)).view(-1, 50), tokens.view(-1)).backward()

    return step


def residual():
    layer, x = nn.Linear(16, 16), torch.randn(4, 16, requires_grad=True)

    def step():
        y = layer(x)
        (y + torch.relu(y)).sum().backward()

    return step


def of_new_gradients():
    layers, x = nn.ModuleList(nn.Linear(16, 16) for _ in range(3)), torch.randn(4, 16)

    def step():
        y = layers[0](x).tanh()
        (layers[1](y).sin() * layers[2](y).cos() * y.exp()).sum().backward()

    return step


def of_gradients_that_retain():
    x = torch.randn(4, 16, requires_grad=True)

    def step():
        y = x.tanh()
        loss = (y.sin() * y.cos()).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    return step


def of_views():
    x = torch.randn(4, 16, requires_grad=True)

    def step():
        y = x.tanh().view(8, 8)
        (y.sin() * y.cos() * y.t().exp()).sum().backward()

    return step


def _hooked(hold):
    x, kept = torch.randn(4, 16, requires_grad=True), []

    def step():
        kept.clear()
        y = x.tanh()
        sine, cosine = y.sin(), y.cos()
        for each in (sine, cosine):
            each.grad_fn.register_hook(lambda gradients, _: kept.append(hold(gradients[0])))
        (sine * cosine).sum().backward()

    return step


def with_gradients_looked_at():
    return _hooked(lambda gradient: gradient.shape)


def with_gradients_held():
    return _hooked(lambda gradient: gradient)


def with_views_held():
    return _hooked(lambda gradient: gradient[0])


def with_storages_held():
    return _hooked(lambda gradient: gradient.untyped_storage())


ACCUMULATING = (
    "tied",
    "residual",
    "of_new_gradients",
    "of_gradients_that_retain",
    "of_views",
    "with_gradients_looked_at",
    "with_gradients_held",
    "with_views_held",
    "with_storages_held",
)


@pytest.mark.parametrize("program", ACCUMULATING)
def test_unshared_gradients_accumulate_in_place(program):
    comparison = compared(program)
    pairs = zip(comparison.estimated.requests, comparison.measured.requests, strict=True)
    for estimated, measured in pairs:
        # gradients are the requests above those of kernels for numbers
        assert [each for each, _ in estimated if each > 8] == [
            each for each, _ in measured if each > 8
        ]
    assert comparison.estimated.ends == comparison.measured.ends
    for estimated_peak, measured_peak in zip(
        comparison.estimated.peaks, comparison.measured.peaks, strict=True
    ):
        assert 0 <= measured_peak - estimated_peak <= sum(NUMBER)


def test_estimate_is_independent_of_earlier_ones():
    with Runner() as runner:
        first, _, again = (
            api.request(named, device="cpu", arguments={"name": name}).run(runner)
            for name in ("tied", "residual", "tied")
        )
    assert first.peak_allocated == again.peak_allocated
