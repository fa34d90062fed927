"""A recording of CUDA memory: torch's own memory history, read as a log."""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tensorlens.frameworks.base import CensusRoot, RecordOptions
from tensorlens.frameworks.host.event_log import AddressNames, label, unfreed
from tensorlens.frameworks.torch.accelerators import backends
from tensorlens.frameworks.torch.census.findings import look, take
from tensorlens.heap.attributes import class_name
from tensorlens.interpreter import reentrant_lock
from tensorlens.records.events import START, EventLog, Mark
from tensorlens.records.origin import Origin
from tensorlens.records.tensors import TensorTable
from tensorlens.records.torch_files.sizes import MIN_BLOCK
from tensorlens.records.torch_files.snapshots import from_snapshot

_SOURCE = "CUDA memory history"


def is_possible() -> bool:
    """Tell whether this torch has CUDA (or ROCm) and there is a device; initialises nothing."""
    backend = backends.get("cuda")
    return backend is not None and bool(backend.visible())


class CudaRecorder:
    """Records all CUDA devices through torch's history, from when CUDA is first used.

    A history that the program itself records goes on, and is not cleared. The modules that run
    are told to torch as metadata, where it takes any, and so stand beside each event.
    """

    def __init__(self, options: RecordOptions) -> None:
        self._options = options
        self._started = time.time()
        self._holds = False
        self._ended = False
        self._marks: list[tuple[str, float]] = []
        self._unhook: Callable[[], None] | None = None
        # before CUDA is in use nothing is there
        self._before = self._census() if torch.cuda.is_initialized() else None
        # runs at once where CUDA is in use already
        torch.cuda._lazy_call(self._begin)

    def _begin(self) -> None:
        if self._ended:
            return
        self._holds = _history.hold(self._options.limit)
        self._unhook = _tell_modules(self._options.roots())

    def mark(self, name: str) -> None:
        """Give this moment a name."""
        self._marks.append((name, time.time()))

    def read(self, end: bool) -> tuple[EventLog, Origin] | None:
        """Return the log so far; None where CUDA was not used."""
        self._ended = self._ended or end
        if not torch.cuda.is_initialized():
            return None
        held = _history.limit if self._holds else None
        try:
            snapshot = torch.cuda.memory._snapshot()
        finally:
            if end:
                self._stop()
        whole = held is not None and _is_whole(snapshot, self._started, held)
        log, origin = from_snapshot(_since(snapshot, self._started), source=_SOURCE)
        # where events are missing, others may be at the addresses by the first that is left
        early = [row for row, kind in enumerate(log.kind) if kind == START and whole]
        censuses = ((self._before, early), (self._census(), unfreed(log)))
        for number, device in enumerate(log.devices):
            found = [
                (AddressNames(table, device, MIN_BLOCK), rows)
                for table, rows in censuses
                if table is not None
            ]
            label(log, (), found, number)
        begun = self._started if origin.started is None else origin.started
        for name, moment in self._marks:
            when = round((moment - begun) * 1e9)
            log.marks.append(Mark(name, bisect_right(log.time, when), when))
        return log, replace(origin, started=begun)

    def _census(self) -> TensorTable | None:
        return take(self._options.roots()).tensors if self._options.names else None

    def _stop(self) -> None:
        if self._unhook is not None:
            self._unhook()
            self._unhook = None
        if self._holds:
            self._holds = False
            _history.release()


class _History:
    """torch's history, which is one for all recordings: the last of them ends it."""

    def __init__(self) -> None:
        self._lock = reentrant_lock()
        self._holders = 0
        self.limit = 0
        """For how many events it has room."""

    def hold(self, limit: int) -> bool:
        """Turn it on, with room for so many events; tell whether :meth:`release` is due.

        One that the program turned on is the program's: it is left as it is.
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
        """Turn it off if nobody else holds it."""
        with self._lock:
            self._holders -= 1
            if not self._holders:
                torch.cuda.memory._record_memory_history(enabled=None)


_history = _History()


class _Running(threading.local):
    """The paths of the modules that a thread is in, the innermost last."""

    def __init__(self) -> None:
        self.paths: list[str] = []


def _since(snapshot: dict[str, Any], started: float) -> dict[str, Any]:
    """Return the snapshot without events from before; what they left is in the segments."""
    begun = started * 1e6
    traces = [
        [event for event in trace if event.get("time_us", begun) >= begun]
        for trace in snapshot.get("device_traces", ())
    ]
    return {**snapshot, "device_traces": traces}


def _is_whole(snapshot: dict[str, Any], started: float, limit: int) -> bool:
    """Tell whether a history with room for so many events has all since the recording began."""
    traces = [trace for trace in snapshot.get("device_traces", ()) if trace]
    return all(trace[0].get("time_us", 0) < started * 1e6 or len(trace) < limit for trace in traces)


def _tell_modules(roots: Sequence[CensusRoot]) -> Callable[[], None]:
    """Let torch note which module runs beside each event, until what is returned is called."""
    tell = getattr(torch._C, "_cuda_setMemoryMetadata", None)
    if tell is None or "torch._dynamo" in sys.modules:
        # hooks would be compiled into the program's graphs
        return lambda: None
    _, path_of = look(roots, near=False)
    running = _Running()

    def say() -> None:
        tell(f"tensorlens phase=forward module={running.paths[-1]}" if running.paths else "")

    def enter(module: Any, arguments: Any) -> None:
        kind = class_name(module)
        running.paths.append((path_of(id(module), kind) or kind).replace(" ", ""))
        say()

    def leave(module: Any, arguments: Any, output: Any) -> None:
        del running.paths[-1:]
        say()

    modules = torch.nn.modules.module
    handles = (
        modules.register_module_forward_pre_hook(enter),
        modules.register_module_forward_hook(leave, always_call=True),
    )

    def stop() -> None:
        for handle in handles:
            handle.remove()
        tell("")

    return stop
