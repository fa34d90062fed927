"""A report changes nothing of the program: not its references, its results, or its memory."""

import gc
import sys
import threading
import warnings
import weakref

import pytest
import torch
from census_models import Mlp
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensorlens
from tensorlens.frameworks.torch import native


@pytest.fixture(autouse=True)
def tidy():
    torch.manual_seed(0)
    yield
    gc.collect()


@pytest.fixture
def silent(monkeypatch, tmp_path):
    """Print reports into a file."""
    with (tmp_path / "reports").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        yield file


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5)) for _ in range(2)
        )
        self.calls = 0

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(self.counted, block, x, use_reentrant=False)
        return x

    def counted(self, block, x):
        self.calls += 1
        return block(x)


def look(reporter):
    if reporter is not None:
        reporter.report()


def test_reference_counts_are_unchanged(silent):
    model, kept = Mlp(), [torch.zeros(3), torch.zeros(4)]
    adam = torch.optim.Adam(model.parameters())
    loss = model(model.batch()).sum()
    loss.backward()
    adam.step()
    local = torch.zeros(5)
    reporter = tensorlens.MemReporter(model, adam)
    reporter.snapshot()
    things = [
        *(model, adam, kept, kept[0], local, loss, model.fc1, vars(model), adam.state),
        *(model.fc1.weight, model.fc1.weight.grad, adam.state[model.fc1.weight]["exp_avg"]),
        *(loss.grad_fn, type(model), sys.modules, sys._getframe()),
    ]
    before = [sys.getrefcount(thing) for thing in things]
    reporter.report(verbose=True, explain=True)
    snapshot = reporter.snapshot()
    after = [sys.getrefcount(thing) for thing in things]
    assert after == before
    assert len(snapshot.tensors) > 0


def test_things_die_when_they_would(silent):
    class Thing:
        pass

    def work():
        inner, thing = torch.zeros(7), Thing()
        thing.weight = torch.zeros(8)
        found.extend([weakref.ref(inner), weakref.ref(thing), weakref.ref(thing.weight)])
        snapshots.append(reporter.report())

    found, snapshots = [], []
    model = Mlp()
    reporter = tensorlens.MemReporter(model)
    gc.disable()
    try:
        work()
        assert [reference() for reference in found] == [None] * 3
        output = model(model.batch())
        alive = weakref.ref(output)
        snapshots.append(reporter.snapshot())
        del output
        assert alive() is None
        ends = weakref.ref(model)
        reporter.report()
        weights = weakref.ref(model.fc1.weight)
        del model
        # a module is part of no cycle
        assert (ends(), weights()) == (None, None)
    finally:
        gc.enable()
    named = {each.name for each in snapshots[0].tensors}
    assert "test_things_die_when_they_would.work(): thing.weight" in named


def test_a_snapshot_leaves_nothing_allocated_and_raises_no_peak(silent):
    allocator = native.install()[0]
    model = Mlp()
    adam = torch.optim.Adam(model.parameters())
    reporter = tensorlens.MemReporter(model, adam)
    model(model.batch()).sum().backward()
    adam.step()
    output = model(model.batch())
    odd = [torch.eye(3).to_sparse(), torch.zeros(4, 4).to_mkldnn(), torch.zeros(9)[2:3]]
    reporter.snapshot()
    before = allocator.allocated(), len(allocator.living().address)
    allocator.read()
    snapshots = [reporter.snapshot() for _ in range(3)]
    assert allocator.read()[:2] == (before[0], before[0])
    reporter.report(verbose=True)
    assert allocator.read()[:2] == (before[0], before[0])
    assert (allocator.allocated(), len(allocator.living().address)) == before
    assert len(snapshots) == 3 and len(odd) == 3 and output is not None


@pytest.mark.parametrize("graph", [False, True])
def test_two_snapshots_in_a_row_are_equal(graph, silent):
    model = Mlp()
    adam = torch.optim.Adam(model.parameters())
    reporter = tensorlens.MemReporter(model, adam)
    model(model.batch()).sum().backward()
    adam.step()
    odd = [torch.eye(3).to_sparse(), torch.zeros(4, 4).to_mkldnn(), torch.zeros(9)[2:3]]
    with torch.set_grad_enabled(graph):
        output = model(model.batch())
    gc.collect()
    # rows are in the order of the heap, which a collection changes
    gc.disable()
    try:
        first, second = reporter.snapshot(), reporter.snapshot()
    finally:
        gc.enable()
    assert second.tensors == first.tensors
    for figure in ("allocated", "named", "unnamed", "block_count"):
        assert getattr(first.ledger["cpu"], figure) == getattr(second.ledger["cpu"], figure)
    assert first.notes == second.notes
    assert not str(reporter.diff(first)).count("appeared 1")
    assert len(odd) == 3 and output is not None


def test_the_first_report_of_a_process_is_as_the_second():
    # what torch imports by and by may hold tensors of its own; models must not differ
    model = nn.Sequential(nn.Linear(3, 2))
    model.extra = [torch.zeros(4)]
    adam = torch.optim.Adam(model.parameters())
    adam.extra = torch.zeros(5)
    reporter = tensorlens.MemReporter(model, adam)
    # rows are in the order of the heap, which a collection changes
    gc.disable()
    try:
        first, second = reporter.snapshot(), reporter.snapshot()
    finally:
        gc.enable()
    assert [each.name for each in first.tensors] == [each.name for each in second.tensors]


def test_nothing_is_unpacked_or_computed_again(silent):
    unpacked = []

    def unpack(value):
        unpacked.append(value)
        return value

    model = Mlp()
    reporter = tensorlens.MemReporter(model)
    with torch.autograd.graph.saved_tensors_hooks(lambda value: value, unpack):
        loss = model(model.batch()).sum()
    reporter.report()
    assert unpacked == []
    loss.backward()
    assert len(unpacked) > 0


def test_checkpoints_are_not_run_again(silent):
    model = Dropping()
    reporter = tensorlens.MemReporter(model)
    loss = model(torch.ones(2, 8, requires_grad=True)).sum()
    assert model.calls == 2
    reporter.report()
    assert model.calls == 2
    loss.backward()
    assert model.calls == 4


def train(batch, watched):
    torch.manual_seed(1)
    model = Dropping()
    adam = torch.optim.AdamW(model.parameters())
    reporter = tensorlens.MemReporter(model, adam) if watched else None
    if watched:
        for module in (model, *model.blocks[0]):
            module.register_forward_hook(lambda *args: look(reporter))
            module.register_full_backward_hook(lambda *args: look(reporter))
    results = []
    for _ in range(2):
        look(reporter)
        with torch.autocast("cpu", torch.bfloat16, enabled=len(results) == 1):
            loss = model(batch).square().mean()
            look(reporter)
        adam.zero_grad()
        look(reporter)
        loss.backward()
        look(reporter)
        adam.step()
        look(reporter)
        results.append(loss.item())
    versions = [each._version for each in model.parameters()]
    return results, list(model.parameters()), torch.get_rng_state(), versions


def test_a_training_run_is_the_same_bit_for_bit(silent):
    batch = torch.randn(4, 8, requires_grad=True)
    plain, seen = train(batch, False), train(batch, True)
    assert plain[0] == seen[0]
    assert all(torch.equal(one, other) for one, other in zip(plain[1], seen[1], strict=True))
    assert torch.equal(plain[2], seen[2])
    assert plain[3] == seen[3]


def test_versions_are_untouched(silent):
    x = torch.zeros(3)
    x.add_(1)
    view = x[1:]
    view.add_(1)
    reporter = tensorlens.MemReporter()
    reporter.report()
    assert (x._version, view._version) == (2, 2)


def test_settings_and_warnings(silent):
    model = Mlp()
    reporter = tensorlens.MemReporter(model)
    odd = [torch.eye(3).to_sparse_csr(), (model(model.batch()) * 2)]

    def settings():
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_anomaly_enabled(),
            torch.get_num_threads(),
            gc.isenabled(),
            gc.get_freeze_count(),
            gc.get_threshold(),
            sys.gettrace(),
            sys.getprofile(),
            list(warnings.filters),
        )

    before = settings()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reporter.report(verbose=True, explain=True)
    assert settings() == before
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        within = settings()
        reporter.report()
        assert settings() == within
    assert len(odd) == 2


@pytest.mark.parametrize("used", [False, True])
def test_the_cache_of_autocast_does_not_grow(used, silent):
    allocator = native.install()[0]
    model = Mlp()
    reporter = tensorlens.MemReporter(model)
    reporter.snapshot()
    with torch.autocast("cpu", torch.bfloat16):
        if used:
            # a copy of fc1.weight and its bias, and none of fc2's
            model.fc1(torch.ones(1, 20))
        before = allocator.allocated(), len(allocator.living().address)
        reporter.report()
        reporter.snapshot()
        assert (allocator.allocated(), len(allocator.living().address)) == before
        model.fc1(torch.ones(1, 20))
        # 630 elements of two bytes, whether made before or now
        grown = 0 if used else 1260
        assert allocator.allocated() - before[0] == grown


def test_no_tensor_comes_into_the_heap(silent):
    model = Mlp()
    reporter = tensorlens.MemReporter(model)
    output = model(model.batch())
    reporter.snapshot()

    def count():
        return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())

    before = count()
    snapshots = [reporter.report(), reporter.snapshot()]
    assert count() == before
    assert len(snapshots) == 2 and output is not None


def test_tuples_that_other_threads_make_are_left_alone():
    errors, stop = [], threading.Event()

    def make():
        while not stop.is_set():
            try:
                tuple(torch.zeros(1) for _ in range(40))
            except BaseException as error:
                errors.append(error)

    thread = threading.Thread(target=make)
    reporter = tensorlens.MemReporter()
    thread.start()
    try:
        for _ in range(10):
            reporter.snapshot()
    finally:
        stop.set()
        thread.join()
    assert errors == []
