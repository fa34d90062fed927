"""A recording of host memory while it runs, and the censuses that name its blocks.

Censuses are taken at the beginning, when backward begins, and at the end.
"""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tensorlens.frameworks.base import CensusRoot, RecordOptions
from tensorlens.frameworks.host.allocator_log import Columns, LogRows, NativeRecorder
from tensorlens.frameworks.host.log_maker import (
    AT_THE_END,
    AddressNames,
    LogMaker,
    TimeSpan,
    block_ends,
    dropped_ends,
    name_blocks,
    rows_during,
)
from tensorlens.records.logs.events import DeferredLog, EventLog, Origin
from tensorlens.records.logs.stacks import source_lines
from tensorlens.records.tensors import TensorTable
from tensorlens.units import format_bytes

ModulePath = Callable[[int, str], str | None]
"""Maps a module's address and type name to its path; None if unknown."""

Moment = Literal["begin", "backward", "end"]

_CENSUS_TIME_DIVISOR = 20
"""After the second backward pass, censuses take at most one part in this many of the time."""


@dataclass(frozen=True)
class LogParts:
    """Rows of a recording, and all that makes logs of them.

    Without ``amend`` it holds no object of the program.
    """

    maker: LogMaker
    taken: LogRows
    tables: list[tuple[TensorTable, TimeSpan]]
    started: int
    """Monotonic nanoseconds that the log's times count from."""
    amend: Amendment | None

    def log(self) -> EventLog:
        """Return the log of all rows."""
        rows = self.taken.rows
        log = self._build_log(rows, block_ends(rows))
        log.sources = source_lines(log.stacks)
        return log

    def peak(self) -> EventLog:
        """Return the log of blocks resident at the peak of the dropped events."""
        rows = self.taken.dropped_peak
        return self._build_log(rows, dropped_ends(rows, self.taken.rows))

    def _build_log(self, rows: Columns, until: array[int]) -> EventLog:
        log = self.maker.log(rows, self.started)
        found = ((names, rows_during(span, rows, until)) for names, span in self._names)
        name_blocks(log, rows.owner, found)
        if self.amend is not None:
            self.amend(log, self)
        return log

    @functools.cached_property
    def _names(self) -> list[tuple[AddressNames, TimeSpan]]:
        return [(AddressNames(table), span) for table, span in self.tables]


Amendment = Callable[[EventLog, LogParts], None]


class HostRecorder:
    """Recorder of a counting allocator, running from its creation to ``read(True)``.

    A subclass adds what is the framework's own.

    Args:
        options: options of the recording.
        native: recorder of the allocator.

    Raises:
        NativeUnavailable: stacks cannot be read on this Python.
    """

    source: ClassVar[str]
    """Name of the recorder, for the header."""
    _amend: Amendment | None = None
    """Adds facts of the framework to a log, such as the lines of graph nodes."""

    def __init__(self, options: RecordOptions, native: NativeRecorder) -> None:
        self._options = options
        self._native = native
        self._between: list[tuple[TensorTable, TimeSpan]] = []
        """Censuses at the beginnings of backward."""
        self._paths: list[ModulePath] = []
        self._spent = 0
        """Nanoseconds that those censuses took."""
        # the first watcher counts the blocks that exist already
        self._unwatch = weakref.finalize(self, self._watch())
        self._unwatch.atexit = False
        try:
            self._before = self._take("begin")[0] if options.names else None
            self._thread = native.thread_now()
            self._span = native.begin(options.limit, options.ops)
            self._wall, self._started = time.time(), time.monotonic_ns()
            if options.names:
                _running.add(self)
                native.name_at_backward(_name)
        except BaseException:
            self._unwatch()
            raise

    def _watch(self) -> Callable[[], None]:
        """Watch the allocator as :meth:`tensorlens.frameworks.base.Adapter.watch` does."""
        raise NotImplementedError

    def _look(self, roots: Sequence[CensusRoot], moment: Moment) -> tuple[TensorTable, ModulePath]:
        """Return live tensors, named from the roots, and the paths of live modules."""
        raise NotImplementedError

    def _module_paths(self, roots: Sequence[CensusRoot]) -> ModulePath:
        """Return the paths of live modules, without a census."""
        raise NotImplementedError

    def name(self) -> None:
        """Take a census as backward begins, unless censuses took too much time already."""
        began = time.monotonic_ns()
        # the state of optimizers is first seen in the second pass
        if len(self._between) > 1 and _CENSUS_TIME_DIVISOR * self._spent > began - self._started:
            return
        tensors, path = self._take("backward")
        self._between.append((tensors, (began, time.monotonic_ns())))
        self._paths.append(path)
        self._spent += time.monotonic_ns() - began

    def read(self, end: bool) -> tuple[EventLog, Origin]:
        """Return the log so far; ``end`` stops recording."""
        if end:
            _running.discard(self)
        try:
            taken = self._native.read(self._span, end)
        finally:
            if end:
                self._unwatch()
        tables, paths = self._censuses()

        def module_name(address: int, kind: str) -> str:
            return next(filter(None, (path(address, kind) for path in paths)), kind)

        maker = LogMaker(self._native, module_name, self._thread)
        parts = LogParts(maker, taken, tables, self._started, self._amend)
        # a framework that adds to the log must do so now: its objects may die
        defer = DeferredLog if self._amend is None else _at_once
        return defer(parts.log), Origin(
            source={"cpu": self.source},
            started=self._wall,
            started_ns=self._started,
            dropped=taken.dropped,
            dropped_peaks={"cpu": defer(parts.peak)} if len(taken.dropped_peak.kind) else {},
            notes=gaps(taken, self._native.no_ops if self._options.ops else None),
        )

    def _censuses(self) -> tuple[list[tuple[TensorTable, TimeSpan]], list[ModulePath]]:
        """Take one more census; return all, with time spans, and paths of modules, latest first."""
        if self._before is None:
            return [], [self._module_paths(self._options.roots())]
        tensors, path = self._take("end")
        tables = [
            (self._before, (self._started, self._started)),
            *self._between,
            (tensors, (AT_THE_END, AT_THE_END)),
        ]
        return tables, [path, *reversed(self._paths)]

    def _take(self, moment: Moment) -> tuple[TensorTable, ModulePath]:
        return self._look(self._options.roots(), moment)


_running: weakref.WeakSet[HostRecorder] = weakref.WeakSet()
"""Recorders that name blocks."""


def _name() -> None:
    """Take a census for each running recorder; called amid the program's own code."""
    for recorder in [*_running]:
        with contextlib.suppress(Exception):
            recorder.name()


def _at_once(make: Callable[[], EventLog]) -> EventLog:
    return make()


def gaps(taken: LogRows, no_ops: str | None) -> tuple[str, ...]:
    """Return notes on gaps of a recording; ``no_ops`` is the reason why operators are unknown."""
    notes = []
    if no_ops is not None:
        notes.append(f"operators and autograd's nodes are not known: {no_ops}")
    if taken.unlisted:
        notes.append(
            f"{format_bytes(taken.unlisted)} from before the first event that was kept is one "
            "block here: there was no memory to list all blocks of then"
        )
    if taken.lost_stacks:
        notes.append(f"{taken.lost_stacks} events have no stack: there are too many stacks")
    return tuple(notes)
