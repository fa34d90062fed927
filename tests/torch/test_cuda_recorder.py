"""The recorder of CUDA memory over a torch without CUDA: its history is a stub of known content."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tensorlens.errors import UsageError
from tensorlens.frameworks import RecordOptions
from tensorlens.frameworks.torch import Adapter, Cuda
from tensorlens.frameworks.torch import recorder as recorders
from tensorlens.native import NativeUnavailable
from tensorlens.recording import Recorders
from tensorlens.records import ALLOC, EventLog, Origin, TensorTable

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "records"))

import snapshot_builder
from snapshot_builder import T

MIB = 1 << 20


class History:
    """Stands for torch.cuda: one segment, and the events of a trace that the test adds."""

    def __init__(self, monkeypatch, initialized=True, recording=False):
        self.calls = []
        self.metadata = []
        self.waiting = []
        self.trace = []
        self.blocks = []
        self.initialized = initialized
        self.recording = recording
        replaced = {
            (torch.cuda, "_lazy_call"): self.lazy_call,
            (torch.cuda, "is_initialized"): lambda: self.initialized,
            (torch.cuda.memory, "_record_memory_history"): self.record,
            (torch.cuda.memory, "_snapshot"): self.snapshot,
            (torch._C, "_cuda_isHistoryEnabled"): lambda: self.recording,
            (torch._C, "_cuda_setMemoryMetadata"): self.metadata.append,
        }
        for (owner, name), stub in replaced.items():
            monkeypatch.setattr(owner, name, stub, raising=False)

    def lazy_call(self, function):
        if self.initialized:
            function()
        else:
            self.waiting.append(function)

    def record(self, enabled="all", **options):
        self.calls.append((enabled, options))
        self.recording = enabled is not None

    def snapshot(self):
        blocks = [
            {"address": at, "size": size, "requested_size": size, "state": state, "frames": []}
            for at, size, state in self.blocks
        ]
        segment = {
            "device": 0,
            "address": 0,
            "total_size": 20 * MIB,
            "stream": 0,
            "segment_type": "large",
            "blocks": blocks,
        }
        return {"segments": [segment], "device_traces": [self.trace]}

    def event(self, action, addr, size, when):
        frames = [{"filename": "train.py", "line": 3, "name": "step"}]
        told = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": int(when)}
        metadata = self.metadata[-1] if self.metadata else ""
        self.trace.append({**told, "frames": frames, "user_metadata": metadata})


@dataclass
class Found:
    """What a census returns."""

    tensors: TensorTable


def table_of(tensors):
    """A census of the first GPU: name, address and bytes of each tensor."""
    return snapshot_builder.table_of(
        T(name, (nbytes,), "parameter", "cuda:0", "uint8", storage=address)
        for name, address, nbytes in tensors
    )


@pytest.fixture
def options():
    return RecordOptions(limit=1000, names=False)


def test_a_history_becomes_a_log(monkeypatch, options):
    history = History(monkeypatch)
    before = time.time() * 1e6 - 5_000_000
    history.event("alloc", 8 * MIB, 2 * MIB, before)
    recorder = recorders.CudaRecorder(options)
    now = time.time() * 1e6 + 10
    history.event("alloc", 0, 3 * MIB - 100, now)
    history.event("free_requested", 0, 3 * MIB - 100, now + 10)
    history.event("free_completed", 0, 3 * MIB - 100, now + 11)
    history.blocks = [
        (0, 8 * MIB, "inactive"),
        (8 * MIB, 2 * MIB, "active_allocated"),
        (10 * MIB, 10 * MIB, "inactive"),
    ]
    log, origin = recorder.read(True)
    events = [(event.action, event.nbytes) for event in log if event.device == "cuda:0"]
    # 3 MiB - 100 B round up to 512 B
    assert events == [("start", 2 * MIB), ("alloc", 3 * MIB), ("free", 3 * MIB)]
    assert log[1].stack[0].lineno == 3 and log[1].pair == 2
    assert origin.source == {"cuda:0": "CUDA memory history"}
    assert [enabled for enabled, _ in history.calls] == ["all", None]
    assert history.calls[0][1]["max_entries"] == 1000


def test_memory_history_of_the_program_goes_on(monkeypatch, options):
    history = History(monkeypatch, recording=True)
    recorders.CudaRecorder(options).read(True)
    assert history.calls == [] and history.recording


def test_unused_cuda_is_not_initialised(monkeypatch, options):
    history = History(monkeypatch, initialized=False)
    recorder = recorders.CudaRecorder(options)
    assert history.calls == [] and recorder.read(True) is None
    (begin,) = history.waiting
    begin()
    assert history.calls == [], "it has ended before CUDA began"


def test_recording_begins_when_cuda_does(monkeypatch, options):
    history = History(monkeypatch, initialized=False)
    recorder = recorders.CudaRecorder(options)
    history.initialized = True
    history.waiting.pop()()
    assert [enabled for enabled, _ in history.calls] == ["all"]
    recorder.read(True)
    assert [enabled for enabled, _ in history.calls] == ["all", None]


class Allocating(torch.nn.Module):
    """Has the history note a block of 1 MiB while it runs, at the address that it is given."""

    def __init__(self, history, inner=None):
        super().__init__()
        self.history = history
        self.inner = inner

    def forward(self, address):
        if self.inner is not None:
            self.inner(address + MIB)
        self.history.event("alloc", address, MIB, time.time() * 1e6 + 10)


def modules_of(recorder):
    log, _ = recorder.read(True)
    return [event.context.module for event in log if event.action == "alloc"]


@pytest.fixture
def history(monkeypatch):
    # what an optimizer imports when it is made
    import torch._dynamo

    torch._dynamo.reset()
    yield History(monkeypatch)
    torch._dynamo.reset()


def test_events_have_the_module_that_ran(history, options):
    model = Allocating(history, Allocating(history))
    recorder = recorders.CudaRecorder(options)
    model(0)
    history.event("alloc", 4 * MIB, MIB, time.time() * 1e6 + 10)
    history.blocks = [(0, 5 * MIB, "active_allocated"), (5 * MIB, 15 * MIB, "inactive")]
    assert modules_of(recorder) == ["model.inner", "model", None]
    told = len(history.metadata)
    model(0)
    assert len(history.metadata) == told, "the hooks are gone"


def test_overlapping_recordings_leave_the_compiler_as_it_was(history, options):
    real = torch.compile
    first, second = recorders.CudaRecorder(options), recorders.CudaRecorder(options)
    first.read(True)
    assert torch.nn.modules.module._has_any_global_hook()
    second.read(True)
    assert torch.compile is real


@pytest.mark.parametrize("before", [True, False])
def test_compiled_modules_get_no_hooks(history, options, before):
    layer = torch.nn.Linear(2, 2)
    if before:
        torch.compile(layer, backend="eager")
    real = torch.compile
    recorder = recorders.CudaRecorder(options)
    assert torch.nn.modules.module._has_any_global_hook() is not before
    if not before:
        torch.compile(layer, backend="eager")
    assert not torch.nn.modules.module._has_any_global_hook()
    recorder.read(True)
    assert torch.compile is real


def test_a_mark_is_placed_by_its_time(monkeypatch, options):
    history = History(monkeypatch)
    stand_in = SimpleNamespace(record=lambda options: {"": recorders.CudaRecorder(options)})
    recorder = Recorders([stand_in], options)
    history.event("alloc", 0, MIB, time.time() * 1e6)
    time.sleep(0.002)
    recorder.mark("between")
    time.sleep(0.002)
    history.event("alloc", 4 * MIB, MIB, time.time() * 1e6)
    history.blocks = [
        (0, MIB, "active_allocated"),
        (MIB, 3 * MIB, "inactive"),
        (4 * MIB, MIB, "active_allocated"),
        (5 * MIB, 15 * MIB, "inactive"),
    ]
    log, _ = recorder.read(True)
    rows = [event.row for event in log if event.action == "alloc"]
    assert [mark.row for mark in log.marks] == [rows[1]]


def test_last_overlapping_recording_ends_the_history(monkeypatch, options):
    history = History(monkeypatch)
    first, second = recorders.CudaRecorder(options), recorders.CudaRecorder(options)
    first.read(True)
    assert history.recording
    second.read(True)
    assert not history.recording
    # once on, once off
    assert [enabled for enabled, _ in history.calls] == ["all", None]


def test_history_stopped_by_the_program_restarts(monkeypatch, options):
    history = History(monkeypatch)
    first = recorders.CudaRecorder(options)
    history.recording = False
    second = recorders.CudaRecorder(options)
    assert [told.get("clear_history") for _, told in history.calls] == [True, False]
    first.read(True)
    second.read(True)
    assert not history.recording


def hidden_cuda(devices=-1):
    """Stand for CUDA where NVML finds so many devices; -1: it cannot tell."""
    stand_in = SimpleNamespace(visible=lambda: None if devices < 0 else devices)
    stand_in.may_exist = lambda: Cuda.may_exist(stand_in)
    return stand_in


class HostStandIn:
    """Records one block of 8 bytes."""

    def __init__(self, options):
        self.log = EventLog()
        self.log.append(ALLOC, "cpu", 1, 8, 1)

    def read(self, end):
        return self.log, Origin(source={"cpu": "torch"}, started=time.time())


@pytest.mark.parametrize(("devices", "names"), [(0, ["torch"]), (-1, ["torch", "torch on CUDA"])])
def test_cuda_is_recorded_where_the_number_of_devices_is_not_known(
    monkeypatch, options, devices, names
):
    History(monkeypatch, initialized=False)
    monkeypatch.setitem(recorders.backends, "cuda", hidden_cuda(devices))
    monkeypatch.setattr(recorders, "host_recorder", HostStandIn)
    assert [*recorders.start(options)] == names


def test_unreadable_cuda_events_leave_host_events(monkeypatch, options):
    history = History(monkeypatch)
    monkeypatch.setitem(recorders.backends, "cuda", hidden_cuda())
    monkeypatch.setattr(recorders, "host_recorder", HostStandIn)
    recording = Recorders([Adapter()], options)
    history.trace = [{"action": "alloc", "form": "of another torch"}]
    log, origin = recording.read(True)
    assert [(event.device, event.nbytes) for event in log] == [("cpu", 8)]
    (note,) = origin.notes
    assert note.startswith("torch on CUDA: its events were lost: ")
    assert not history.recording


def test_why_the_host_is_not_recorded_is_a_note(monkeypatch, options):
    def refuse(options):
        raise NativeUnavailable("no compiler")

    History(monkeypatch, initialized=False)
    monkeypatch.setitem(recorders.backends, "cuda", hidden_cuda(0))
    monkeypatch.setattr(recorders, "host_recorder", refuse)
    with pytest.raises(NativeUnavailable):
        recorders.start(options)
    monkeypatch.setitem(recorders.backends, "cuda", hidden_cuda(1))
    log, origin = recorders.start(options)["torch on CUDA"].read(True)
    assert len(log) == 0 and origin.notes == ("no compiler",)


def test_the_host_that_cannot_be_recorded_leaves_no_history_on(monkeypatch, options):
    def refuse(options):
        raise UsageError("no")

    history = History(monkeypatch)
    monkeypatch.setitem(recorders.backends, "cuda", hidden_cuda())
    monkeypatch.setattr(recorders, "host_recorder", refuse)
    with pytest.raises(UsageError):
        recorders.start(options)
    assert history.calls == []


def test_cuda_that_cannot_be_recorded_ends_the_recording_of_the_host(monkeypatch, options):
    ended = []

    class Host:
        def __init__(self, options):
            pass

        def read(self, end):
            ended.append(end)

    def refuse(options, note):
        raise MemoryError

    monkeypatch.setitem(recorders.backends, "cuda", hidden_cuda())
    monkeypatch.setattr(recorders, "CudaRecorder", refuse)
    monkeypatch.setattr(recorders, "host_recorder", Host)
    with pytest.raises(MemoryError):
        recorders.start(options)
    assert ended == [True]


@pytest.mark.parametrize(("limit", "early"), [(1000, True), (4, True), (3, False)])
def test_names_of_what_was_there_at_the_start_and_is_at_the_end(monkeypatch, limit, early):
    history = History(monkeypatch)
    weight = table_of([("fc.weight", 8 * MIB, 2 * MIB), ("fc.bias", 10 * MIB, 100)])
    output = table_of([("out", 0, 3 * MIB - 100)])
    tables = [weight, output]
    monkeypatch.setattr(recorders, "census", lambda roots: Found(tables.pop(0)))
    recorder = recorders.CudaRecorder(RecordOptions(limit=limit))
    now = time.time() * 1e6 + 10
    history.event("alloc", 0, 3 * MIB - 100, now)
    history.event("free_requested", 8 * MIB, 2 * MIB, now + 10)
    history.event("free_completed", 8 * MIB, 2 * MIB, now + 11)
    history.blocks = [
        (0, 3 * MIB, "active_allocated"),
        (3 * MIB, 7 * MIB, "inactive"),
        (10 * MIB, 512, "active_allocated"),
        (10 * MIB + 512, 10 * MIB - 512, "inactive"),
    ]
    log, _ = recorder.read(True)
    named = {event.label.name: event.action for event in log if event.label}
    # the weight is gone at the end, the output was not there at the start; of 3 events in a history
    # with room for 3 there may have been more
    before = {"fc.weight": "start", "fc.bias": "start"} if early else {}
    assert named == {**before, "out": "alloc"}


def test_before_cuda_is_used_there_is_nothing_to_name(monkeypatch):
    History(monkeypatch, initialized=False)
    monkeypatch.setattr(recorders, "census", lambda roots: pytest.fail("a census of nothing"))
    assert recorders.CudaRecorder(RecordOptions(limit=1000)).read(True) is None
