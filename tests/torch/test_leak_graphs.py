"""A graph that gets deeper in each step: the tensor that holds it, and programs that have none."""

import gc
import inspect
import weakref

import pytest
import torch
from torch import nn

from tensorlens import LeakWatch
from tensorlens.frameworks.torch import loop_steps
from tensorlens.leaks import FollowedLoop, GrowthKind, HostSample, LoopJudge

STEPS = 12
PER_STEP = 10_000
"""Bytes by which the host's memory grows, in a test that says so."""


@pytest.fixture(autouse=True)
def no_graphs_of_other_tests():
    gc.collect()


def grown(step, steps=STEPS):
    """Return what is found when a step has been made so many times."""
    follower = loop_steps.TorchSteps()
    try:
        for number in range(steps):
            follower.begin()
            step(number)
        return follower.growing_graph(steps)
    finally:
        follower.close()


@pytest.fixture
def growing_host(monkeypatch):
    """Let the host's memory grow in each step, whatever the machine does."""
    set_host(monkeypatch, PER_STEP)


def set_host(monkeypatch, per_step):
    def sample(loop, step, allocated):
        return HostSample(step, per_step * step, 9)

    monkeypatch.setattr(FollowedLoop, "host_sample", sample)


def watched(step, steps=STEPS):
    with LeakWatch() as watch:
        for number in range(steps):
            step(number)
            watch.step()
    return watch.report


def line_of(function, mark):
    lines, first = inspect.getsourcelines(function)
    return next(first + at for at, line in enumerate(lines) if line.rstrip().endswith(mark))


@pytest.mark.parametrize("start", [0, 0.0, torch.zeros(())])
@pytest.mark.parametrize("is_in_place", [True, False])
def test_a_sum_of_losses_grows_by_the_nodes_of_each(start, is_in_place):
    weight = torch.ones(3, requires_grad=True)
    total = start.clone() if isinstance(start, torch.Tensor) else start

    def step(number):
        nonlocal total
        loss = (weight * torch.ones(3)).sum()
        loss.backward()
        if is_in_place:
            total += loss
        else:
            total = total + loss

    found = grown(step)
    assert found.tensor is total
    # mul, sum and the addition; the parameter's own node is that of all
    assert (found.nodes_per_step, found.is_number) == (3, True)


def test_nodes_that_are_dropped_do_not_count():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    total = torch.zeros(2, 1)

    def step(number):
        nonlocal total
        out = model(torch.ones(2, 4))
        (out.exp().log().sqrt() * 2).sum().backward()
        total = total + out

    found = grown(step)
    # addmm and the t() of its weight, twice; relu; the addition
    assert (found.nodes_per_step, found.is_number) == (6, False)


def test_a_graph_is_that_of_the_sum_and_not_of_what_is_made_of_it():
    weight = torch.ones(3, requires_grad=True)
    total, mean = 0, None

    def step(number):
        nonlocal total, mean
        loss = (weight * torch.ones(3)).sum()
        loss.backward()
        total = total + loss
        mean = total / (number + 1)

    found = grown(step)
    assert found.tensor is total
    assert found.nodes_per_step == 3


def test_graph_from_before_the_loop_is_no_growth():
    weight = torch.ones(3, requires_grad=True)
    total = weight.sum()
    for _ in range(10):
        total = total + weight.sum()

    def step(number):
        nonlocal total
        total = total + (weight * 2).sum()

    assert grown(step).nodes_per_step == 3


def test_very_deep_graph_is_read_from_its_end():
    weight = torch.ones((), requires_grad=True)
    total = torch.zeros(())

    def step(number):
        nonlocal total
        value = weight
        for _ in range(9_999):
            value = value.neg()
        total += value

    # 120,000 in all
    assert grown(step).nodes_per_step == 10_000


def test_a_custom_function_is_a_node_as_others_are():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2

        @staticmethod
        def backward(ctx, gradient):
            raise AssertionError("nothing is run")

    weight = torch.ones((), requires_grad=True)
    total = 0

    def step(number):
        nonlocal total
        total += Twice.apply(weight)

    assert grown(step).nodes_per_step == 2


def deep_model():
    """A model whose graph is deep, and the same in each step; the last stays."""
    model = nn.Sequential(*(nn.Tanh() for _ in range(300)))
    weight = torch.ones(2, requires_grad=True)
    kept = {}

    def step(number):
        kept["loss"] = model(weight).sum()
        kept["loss"].backward()

    return step


def running_mean():
    """A mean of the losses' values."""
    weight = torch.ones(3, requires_grad=True)
    mean = {"value": 0.0, "tensor": torch.zeros(())}

    def step(number):
        loss = (weight * torch.ones(3)).sum()
        loss.backward()
        mean["value"] += (loss.item() - mean["value"]) / (number + 1)
        mean["tensor"] += loss.detach()

    return step


def long_sequence():
    """A recurrent net over a long sequence, whose state goes on detached."""
    cell, state = nn.RNNCell(2, 2), torch.zeros(1, 2)
    kept = []

    def step(number):
        nonlocal state
        state = state.detach()
        for _ in range(200):
            state = cell(torch.ones(1, 2), state)
        state.sum().backward()
        kept[:] = [state]

    return step


def made_once():
    """A graph that was made before the loop, beside steps without one."""
    kept = torch.ones(2, requires_grad=True)
    for _ in range(300):
        kept = kept.neg()

    def step(number):
        with torch.no_grad():
            kept.sum()

    return step


def last_steps():
    """The losses of the last three steps."""
    weight = torch.ones(3, requires_grad=True)
    kept = []

    def step(number):
        loss = (weight * torch.ones(3)).sum()
        for _ in range(100):
            loss = loss.neg()
        kept.append(loss)
        del kept[:-3]

    return step


@pytest.mark.parametrize(
    "make",
    [deep_model, running_mean, long_sequence, made_once, last_steps],
    ids=lambda f: f.__name__,
)
def test_a_graph_that_does_not_grow_is_none(make, growing_host):
    step = make()
    assert grown(step) is None
    report = watched(step)
    (other,) = report.others
    assert (other.kind, bool(report)) == (GrowthKind.HOST, False)
    assert other.text.endswith(": native libraries, or large bytes/str objects")


def summing():
    weight = torch.ones(3, requires_grad=True)
    total_loss = 0

    def step(number):
        nonlocal total_loss
        loss = (weight * torch.ones(3)).sum()
        for _ in range(17):
            loss = loss.neg()
        loss.backward()
        total_loss += loss  # ADDED

    return step


def test_the_report_names_the_sum_its_line_and_what_to_do(growing_host):
    report = watched(summing())
    assert report
    assert report.leaks == ()
    (other,) = report.others
    # mul, sum, 17 of neg and the addition
    assert report.verdict == (
        "no tensors are lost in any of 9 steps, but the autograd graph of total_loss grows by 20 "
        "nodes a step"
    )
    assert (other.kind, other.bytes_per_step) == (GrowthKind.GRAPH, PER_STEP)
    place = f"test_leak_graphs.py:{line_of(summing, '# ADDED')} in summing.<locals>.step"
    head, _, rest = other.text.partition("; made at ")
    assert head == (
        "host memory without tensors grew 9.77 KiB a step: probably the autograd graph of "
        "total_loss, which grows by 20 nodes a step, 500 B each"
    )
    assert rest.endswith(f"{place}: use total_loss += loss.item(), or .detach()")
    assert other.path.endswith("total_loss (closure)")


class Meter:
    def __init__(self):
        self.total = torch.zeros(())

    def add(self, loss, count):
        self.total = self.total + (loss + count)


def test_a_sum_in_an_attribute_is_named_with_its_owner(growing_host):
    weight, meter = torch.ones(3, requires_grad=True), Meter()

    def step(number):
        loss = (weight * torch.ones(3)).sum()
        for _ in range(16):
            loss = loss.neg()
        loss.backward()
        meter.add(loss, 2)

    report = watched(step)
    assert "the autograd graph of Meter.total grows by 20 nodes a step" in report.verdict
    assert report.others[0].text.endswith(
        "in Meter.add: use self.total = self.total + (loss + count).item(), or .detach()"
    )
    assert report.others[0].path.endswith("Meter.total (attribute)")


def test_a_sum_that_was_made_before_the_loop_has_no_line(growing_host):
    weight, total = torch.ones(3, requires_grad=True), torch.zeros(3)

    def step(number):
        nonlocal total
        value = weight
        for _ in range(19):
            value = value.neg()
        total += value

    report = watched(step)
    assert report.others[0].text.endswith(
        "20 nodes a step, 500 B each; add x.detach() to total, not x"
    )


def test_a_sum_of_few_nodes_is_told_where_the_heap_does_not_grow(monkeypatch):
    set_host(monkeypatch, 0)
    model = nn.Linear(3, 1)
    total = 0

    def step(number):
        nonlocal total
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        total += loss  # ADDED FEW

    report = watched(step)
    # addmm, the t() of its weight, sum and the addition
    assert report
    assert report.verdict == (
        "no tensors are lost in any of 9 steps, but the autograd graph of total grows by 4 nodes "
        "a step"
    )
    (other,) = report.others
    assert (other.kind, other.bytes_per_step) == (GrowthKind.GRAPH, 0.0)
    name = "test_a_sum_of_few_nodes_is_told_where_the_heap_does_not_grow"
    place = f"test_leak_graphs.py:{line_of(globals()[name], '# ADDED FEW')} in {name}.<locals>.step"
    assert other.text.startswith("the autograd graph of total grows by 4 nodes a step; made at ")
    assert other.text.endswith(f"{place}: use total += loss.item(), or .detach()")
    assert other.path.endswith("total (local)")


def test_a_leak_beside_it_keeps_its_headline(growing_host):
    step, kept = summing(), []

    def both(number):
        step(number)
        kept.append(torch.zeros(4))

    report = watched(both)
    assert report.verdict == ("likely a leak: 1 tensor and 16 B stay behind in each step")
    (other,) = report.others
    assert "total_loss, which grows by 20 nodes a step" in other.text


def test_steps_that_end_before_the_sum_count_the_nodes_of_a_step(growing_host):
    weight, total = torch.ones(3, requires_grad=True), 0
    judge = LoopJudge(2, 50)
    judge.begin(lambda: None)
    for _ in range(STEPS):
        loss = (weight * torch.ones(3)).sum()
        for _ in range(17):
            loss = loss.neg()
        loss.backward()
        judge.step_ended()
        total += loss
    report = judge.finish()
    assert judge.refusal is None
    assert "the autograd graph of total grows by 20 nodes a step" in report.verdict


def test_import_garbage_is_collected_after_the_first_step(growing_host):
    class Cycle:
        pass

    judge = LoopJudge(2, 50)
    judge.begin(lambda: None)
    cycle = Cycle()
    cycle.itself = cycle
    alive = weakref.ref(cycle)
    del cycle
    judge.step_ended()
    assert alive() is None
