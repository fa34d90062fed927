"""Recorders of torch's allocators: the counting allocator of the CPU, CUDA's memory history."""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from tensorlens.frameworks.base import CensusRoot, Recorder, RecordOptions
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.allocator_log import NativeRecorder
from tensorlens.frameworks.host.log_maker import AddressNames, name_blocks
from tensorlens.frameworks.host.recorder import HostRecorder, ModulePath, Moment
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.accelerators import backends
from tensorlens.frameworks.torch.census.findings import census, named_tensors
from tensorlens.frameworks.torch.census.undisturbed import is_engine_busy
from tensorlens.frameworks.torch.compilers import TorchCompilerWatch, has_compiled
from tensorlens.frameworks.torch.native import OPS, TorchAllocator
from tensorlens.heap import UNREACHABLE
from tensorlens.heap.attributes import class_name
from tensorlens.interpreter import reentrant_lock
from tensorlens.native.build import NativeUnavailable, load
from tensorlens.records.logs.events import START, EventLog, Origin, Recorded
from tensorlens.records.tensors import TensorTable
from tensorlens.records.torch_files.sizes import MIN_BLOCK
from tensorlens.records.torch_files.snapshots import from_snapshot
from tensorlens.records.torch_files.trace import MODULE_METADATA

_SOURCE = "CUDA memory history"


def start(options: RecordOptions) -> dict[str, Recorder]:
    """Record every device that can be recorded; return the recorders by name.

    Raises:
        NativeUnavailable: no device can; the text says why.
    """
    cuda = backends.get("cuda")
    has_cuda = cuda is not None and cuda.may_exist()
    found: dict[str, Recorder] = {}
    note = ""
    try:
        found["torch"] = host_recorder(options)
    except NativeUnavailable as error:
        if not has_cuda:
            raise
        note = str(error)
    try:
        return {**found, "torch on CUDA": CudaRecorder(options, note)} if has_cuda else found
    except BaseException:
        for each in found.values():
            each.read(True)
        raise


class TorchRecorder(NativeRecorder):
    """Recorder of torch's counting allocator; the spans that it records may overlap."""

    def __init__(self, allocator: NativeAllocator) -> None:
        super().__init__(allocator)
        self._ops: ctypes.PyDLL | None = None
        # the code of the frames that call modules
        self._module_call = torch.nn.Module._wrapped_call_impl.__code__
        self._library.tl_module_call(id(self._module_call))

    def stop_ops(self) -> None:
        """Stop logging operators; called when no recording wants them any more."""
        if self._ops is not None:
            self._ops.tl_ops_stop()

    def start_ops(self) -> None:
        """Start logging operators and autograd's nodes."""
        if self._ops is None and self.no_ops is None:
            try:
                self._ops = load(OPS)
            except NativeUnavailable as error:
                self.no_ops = str(error)
                return
            hooks = self._library.tl_hooks()
            self._ops.tl_ops_connect.argtypes = (ctypes.c_void_p,)
            self._ops.tl_ops_connect(hooks)
            self._library.tl_hooks_connected()
        if self._ops is not None:
            self._ops.tl_ops_start()


_recorder = functools.cache(TorchRecorder)
"""Return the recorder of an allocator; there is one for each."""


def host_recorder(options: RecordOptions) -> HostRecorder:
    """Record the CPU allocator from now on.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that is not available.
        NativeUnavailable: there is no native counter, or no stacks on this Python.
    """
    return TorchHostRecorder(options, _recorder(cpu.recordable()))


class TorchHostRecorder(HostRecorder):
    """Recorder of torch's CPU allocator."""

    source = TorchAllocator.source

    def _watch(self) -> Callable[[], None]:
        return cpu.watch()

    def _look(self, roots: Sequence[CensusRoot], moment: Moment) -> tuple[TensorTable, ModulePath]:
        # a thread of autograd may run this, whose frames do not lead to the model
        found = named_tensors(roots, near=moment != "backward" or not is_engine_busy())
        if moment == "end" and not _is_whole(found[0]):
            return named_tensors(roots, near=False)
        return found

    def _module_paths(self, roots: Sequence[CensusRoot]) -> ModulePath:
        return named_tensors(roots, near=True)[1]


def _is_whole(table: TensorTable) -> bool:
    """Return whether a table has all blocks of the CPU allocator, and a holder for each."""
    allocator = cpu.allocator()
    if allocator is None:
        return False
    names = {table.names[node] for node in table.name}
    return not (
        allocator.balance(table.storage, 0).unnamed
        or any(name.startswith(UNREACHABLE) for name in names)
    )


class CudaRecorder:
    """Recorder of all CUDA devices: torch's memory history, from the first use of CUDA on.

    A history that the program itself records goes on and is not cleared. Events have the module
    that ran as metadata, if this torch supports it, until the program compiles.

    Args:
        options: of the recording.
        note: a note for the reader.
    """

    def __init__(self, options: RecordOptions, note: str = "") -> None:
        self._options = options
        self._notes = (note,) if note else ()
        self._started = time.time()
        self._holds_history = False
        self._ended = False
        self._undo = ExitStack()
        self._before = self._census() if torch.cuda.is_initialized() else None
        # runs at once if CUDA is in use already
        torch.cuda._lazy_call(self._begin)

    def _begin(self) -> None:
        if self._ended:
            return
        self._holds_history = _history.hold(self._options.limit)
        if self._holds_history:
            self._undo.callback(_history.release)
        self._undo.callback(_add_module_metadata(self._options.roots()))

    def read(self, end: bool) -> Recorded | None:
        """Return the log so far; None if CUDA was not used and there is no note to pass on."""
        self._ended = self._ended or end
        if not torch.cuda.is_initialized():
            unused = EventLog(), Origin(started=self._started, notes=self._notes)
            return unused if self._notes else None
        room = _history.limit if self._holds_history else None
        try:
            snapshot = torch.cuda.memory._snapshot()
        finally:
            if end:
                self._undo.close()
        whole = room is not None and _has_all_events(snapshot, self._started, room)
        log, origin = from_snapshot(_since(snapshot, self._started), source=_SOURCE)
        # if early events are missing, other blocks may lie at the addresses of the first census
        early = [row for row, kind in enumerate(log.kind) if kind == START and whole]
        unfreed = [row for row in log.allocations() if log.pair[row] < 0]
        censuses = ((self._before, early), (self._census(), unfreed))
        for number, device in enumerate(log.devices):
            found = [
                (AddressNames(table, device, MIN_BLOCK), rows)
                for table, rows in censuses
                if table is not None
            ]
            name_blocks(log, (), found, number)
        started = self._started if origin.started is None else origin.started
        return log, replace(origin, started=started, notes=(*origin.notes, *self._notes))

    def _census(self) -> TensorTable | None:
        return census(self._options.roots()).tensors if self._options.names else None


class _History:
    """torch's memory history, shared by all recordings: the last of them ends it."""

    def __init__(self) -> None:
        self._lock = reentrant_lock()
        self._holders = 0
        self.limit = 0
        """Number of events that it has room for."""

    def hold(self, limit: int) -> bool:
        """Turn it on if off, with room for ``limit`` events; return whether to :meth:`release` it.

        A history that the program turned on is left as it is.
        """
        with self._lock:
            is_on = torch._C._cuda_isHistoryEnabled()
            if not self._holders and is_on:
                return False
            if not is_on:
                torch.cuda.memory._record_memory_history(
                    stacks="python", max_entries=limit, clear_history=not self._holders
                )
                self.limit = limit
            self._holders += 1
            return True

    def release(self) -> None:
        """Turn it off if no other recording holds it."""
        with self._lock:
            self._holders -= 1
            if not self._holders:
                torch.cuda.memory._record_memory_history(enabled=None)


_history = _History()


def _since(snapshot: dict[str, Any], started: float) -> dict[str, Any]:
    """Return the snapshot without earlier events; its segments list the blocks that these left."""
    first = started * 1e6
    traces = [
        [event for event in trace if event.get("time_us", first) >= first]
        for trace in snapshot.get("device_traces", ())
    ]
    return {**snapshot, "device_traces": traces}


def _has_all_events(snapshot: dict[str, Any], started: float, limit: int) -> bool:
    """Return whether a history with room for ``limit`` events lost none of the recording's."""
    traces = [trace for trace in snapshot.get("device_traces", ()) if trace]
    return all(trace[0].get("time_us", 0) < started * 1e6 or len(trace) < limit for trace in traces)


def _add_module_metadata(roots: Sequence[CensusRoot]) -> Callable[[], None]:
    """Have torch store the running module with each event; return a function that ends it.

    It also ends when the program begins to compile.
    """
    tell = getattr(torch._C, "_cuda_setMemoryMetadata", None)
    # hooks would be compiled into the program's graphs
    if tell is None or has_compiled():
        return lambda: None
    _, path_of = named_tensors(roots, near=False)
    running = threading.local()

    def paths() -> list[str]:
        """Return the paths of this thread's running modules, the innermost last."""
        found: list[str] = vars(running).setdefault("paths", [])
        return found

    def enter(module: Any, arguments: Any) -> None:
        kind = class_name(module)
        paths().append(path_of(id(module), kind) or kind)
        tell(MODULE_METADATA + paths()[-1])

    def leave(module: Any, arguments: Any, output: Any) -> None:
        del paths()[-1:]
        tell(MODULE_METADATA + paths()[-1] if paths() else "")

    modules = torch.nn.modules.module
    handles = (
        modules.register_module_forward_pre_hook(enter),
        modules.register_module_forward_hook(leave, always_call=True),
    )

    def unhook(codes: object = None) -> None:
        for handle in handles:
            handle.remove()
        tell("")

    watch = TorchCompilerWatch(unhook)

    def stop() -> None:
        watch.stop()
        unhook()

    return stop
