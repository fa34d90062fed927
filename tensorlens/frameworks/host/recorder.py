"""A recording of host memory while it runs, and the censuses that name its blocks.

Censuses are taken at the beginning, when backward begins, and at the end.
"""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorlens.frameworks.base import CensusRoot, RecordOptions
from tensorlens.frameworks.host.allocator_log import Columns, LogRows, NativeRecorder
from tensorlens.frameworks.host.log_maker import (
    AT_THE_END,
    AddressNames,
    BlockLifetimes,
    LogMaker,
    TimeSpan,
    dropped_lifetimes,
    event_lifetimes,
    name_blocks,
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


@dataclass(frozen=True, slots=True)
class LogClock:
    """Origin of a log's times, and the numbers of its threads."""

    started: int
    """Monotonic nanoseconds that the log's times count from."""
    thread: Callable[[int], int]
    """Maps the native part's number of a thread to the log's."""


@dataclass(frozen=True, slots=True)
class FrameworkHooks:
    """Functions of a framework that add to the recording of its allocator."""

    source: str
    """Name of the recorder, for the header."""
    watch: Callable[[], Callable[[], None]]
    """See :meth:`tensorlens.frameworks.base.Adapter.watch`."""
    look: Callable[[Sequence[CensusRoot], Moment], tuple[TensorTable, ModulePath]]
    """Returns live tensors, named from the roots, and the paths of live modules."""
    paths: Callable[[Sequence[CensusRoot]], ModulePath]
    """Returns the paths alone."""
    amend: Callable[[EventLog, LogClock], None] | None = None
    """Adds facts of the framework to a log, such as the lines of graph nodes."""


class MomentCensuses:
    """The censuses of one recording; none if the options ask for no names.

    Args:
        options: options of the recording.
        native: the recorder, which calls back when backward begins.
        hooks: functions that find names.
    """

    def __init__(
        self, options: RecordOptions, native: NativeRecorder, hooks: FrameworkHooks
    ) -> None:
        self._options = options
        self._native = native
        self._hooks = hooks
        self._between: list[tuple[TensorTable, TimeSpan]] = []
        self._paths: list[ModulePath] = []
        self._began = self._spent = 0
        self._before = self._look("begin")[0] if options.names else None

    def begin(self) -> None:
        """Start taking censuses."""
        self._began = time.monotonic_ns()
        if self._options.names:
            _running.add(self)
            self._native.name_at_backward(_name)

    def look(self) -> None:
        """Take a census, unless censuses took too much time already."""
        began = time.monotonic_ns()
        # the state of optimizers is first seen in the second pass
        if len(self._between) > 1 and _CENSUS_TIME_DIVISOR * self._spent > began - self._began:
            return
        tensors, path = self._look("backward")
        self._between.append((tensors, TimeSpan(began, time.monotonic_ns())))
        self._paths.append(path)
        self._spent += time.monotonic_ns() - began

    def end(self) -> None:
        """Stop taking censuses."""
        _running.discard(self)

    def found(self, started: int) -> tuple[list[tuple[TensorTable, TimeSpan]], list[ModulePath]]:
        """Take one more census; return all, with time spans, and paths of modules, latest first.

        Args:
            started: start of the recording, in monotonic nanoseconds.
        """
        if self._before is None:
            return [], [self._hooks.paths(self._options.roots())]
        tensors, path = self._look("end")
        tables = [
            (self._before, TimeSpan(started, started)),
            *self._between,
            (tensors, TimeSpan(AT_THE_END, AT_THE_END)),
        ]
        return tables, [path, *reversed(self._paths)]

    def _look(self, moment: Moment) -> tuple[TensorTable, ModulePath]:
        return self._hooks.look(self._options.roots(), moment)


_running: weakref.WeakSet[MomentCensuses] = weakref.WeakSet()


def _name() -> None:
    """Take a census for each running recording; called amid the program's own code."""
    for censuses in [*_running]:
        with contextlib.suppress(Exception):
            censuses.look()


_MAX_NOTES = 1 << 14
"""Number of marks of :meth:`HostRecorder.note` that are kept."""


class HostRecorder:
    """Recorder of a counting allocator, running from its creation to ``read(True)``.

    Args:
        options: options of the recording.
        native: recorder of the allocator.
        hooks: additions of the framework.

    Raises:
        NativeUnavailable: stacks cannot be read on this Python.
    """

    def __init__(
        self, options: RecordOptions, native: NativeRecorder, hooks: FrameworkHooks
    ) -> None:
        self._options = options
        self._notes: deque[tuple[str, int]] = deque(maxlen=_MAX_NOTES)
        self._native = native
        self._hooks = hooks
        # the first watcher counts the blocks that exist already
        self._unwatch = weakref.finalize(self, hooks.watch())
        self._unwatch.atexit = False
        try:
            self._censuses = MomentCensuses(options, native, hooks)
            self._thread = native.thread_now()
            self._span = native.begin(options.limit, options.ops)
            self._wall, self._started = time.time(), time.monotonic_ns()
            self._censuses.begin()
        except BaseException:
            self._unwatch()
            raise

    def note(self, name: str) -> None:
        """Mark this moment for our own use; only the latest :data:`_MAX_NOTES` marks are kept."""
        self._notes.append((name, time.monotonic_ns() - self._started))

    def read(self, end: bool) -> tuple[EventLog, Origin]:
        """Return the log so far; ``end`` stops recording."""
        if end:
            self._censuses.end()
        try:
            taken = self._native.read(self._span, end)
        finally:
            if end:
                self._unwatch()
        tables, paths = self._censuses.found(self._started)

        def module_name(address: int, kind: str) -> str:
            return next(filter(None, (path(address, kind) for path in paths)), kind)

        parts = LogParts(
            maker=LogMaker(self._native, module_name, self._thread),
            taken=taken,
            tables=tables,
            notes=tuple(self._notes),
            started=self._started,
            amend=self._hooks.amend,
        )
        # a framework that adds to the log must do so now: its objects may die
        defer = DeferredLog if self._hooks.amend is None else _at_once
        return defer(parts.log), Origin(
            source={"cpu": self._hooks.source},
            started=self._wall,
            started_ns=self._started,
            dropped=taken.dropped,
            dropped_peaks={"cpu": defer(parts.peak)} if len(taken.dropped_peak.kind) else {},
            notes=gaps(taken, self._native.no_ops if self._options.ops else None),
        )


@dataclass(frozen=True)
class LogParts:
    """Rows of a recording, and all that makes logs of them; holds no object of the program."""

    maker: LogMaker
    taken: LogRows
    tables: list[tuple[TensorTable, TimeSpan]]
    notes: Sequence[tuple[str, int]]
    """Names and times of our own marks."""
    started: int
    amend: Callable[[EventLog, LogClock], None] | None

    def log(self) -> EventLog:
        """Return the log of all rows."""
        rows = self.taken.rows
        log = self._build_log(rows, event_lifetimes(rows))
        log.add_marks(self.notes, self.taken.dropped)
        log.sources = source_lines(log.stacks)
        return log

    def peak(self) -> EventLog:
        """Return the log of blocks resident at the peak of the dropped events."""
        rows = self.taken.dropped_peak
        return self._build_log(rows, dropped_lifetimes(rows, self.taken.rows))

    def _build_log(self, rows: Columns, lives: BlockLifetimes) -> EventLog:
        log = self.maker.log(rows, self.started)
        found = ((names, lives.rows_during(span)) for names, span in self._names)
        name_blocks(log, rows.owner, found)
        if self.amend is not None:
            self.amend(log, LogClock(self.started, self.maker.thread))
        return log

    @functools.cached_property
    def _names(self) -> list[tuple[AddressNames, TimeSpan]]:
        return [(AddressNames(table), span) for table, span in self.tables]


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
