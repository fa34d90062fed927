"""A recording of host memory while it runs, and the censuses that name what it meets.

There is one at the beginning, when backward begins, and at the end.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorlens.frameworks.base import CensusRoot, RecordOptions
from tensorlens.frameworks.block_names import AddressNames, name_blocks
from tensorlens.frameworks.host.allocator_log import Columns, LogRows, NativeRecorder
from tensorlens.frameworks.host.block_lifetimes import (
    AT_THE_END,
    BlockLifetimes,
    TimeSpan,
    dropped_lifetimes,
    event_lifetimes,
)
from tensorlens.frameworks.host.log_maker import LogMaker
from tensorlens.records.logs.events import OWN_MARK, DeferredLog, EventLog, Mark
from tensorlens.records.logs.origin import Origin
from tensorlens.records.logs.sources import sources_of
from tensorlens.records.tensors import TensorTable
from tensorlens.units import format_bytes

ModulePath = Callable[[int, str], str | None]
"""Gives the path of a module by its address and its type's name; None where it is not known."""

Moment = Literal["begin", "backward", "end"]

_SHARE = 20
"""After the second time, backward is looked at for at most one part in so many of the time."""


@dataclass(frozen=True, slots=True)
class Amendment:
    """Origin of a log's times, and the numbers of its threads."""

    started: int
    """Monotonic nanoseconds that the log's times count from."""
    thread: Callable[[int], int]
    """Gives the log's number of a thread by the native part's."""


@dataclass(frozen=True, slots=True)
class FrameworkHooks:
    """Additions of a framework to the recording of its allocator."""

    source: str
    """Name of the recorder, for the header."""
    watch: Callable[[], Callable[[], None]]
    """As :meth:`tensorlens.frameworks.base.Adapter.watch`."""
    look: Callable[[Sequence[CensusRoot], Moment], tuple[TensorTable, ModulePath]]
    """Gives the live tensors, named from roots on, and the paths of the modules that live."""
    paths: Callable[[Sequence[CensusRoot]], ModulePath]
    """Gives the paths alone."""
    amend: Callable[[EventLog, Amendment], None] | None = None
    """Adds to a log what the framework knows of its events: the lines of a graph's nodes."""


class MomentCensuses:
    """The censuses of one recording; none where the options want no names.

    Args:
        options: of the recording.
        native: calls back when backward begins.
        hooks: find names.
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
        """The recording has begun."""
        self._began = time.monotonic_ns()
        if self._options.names:
            _running.add(self)
            self._native.name_at_backward(_name)

    def look(self) -> None:
        """Find the names of what is there now, unless that was done too often."""
        began = time.monotonic_ns()
        # the second pass is the first to find the state of optimizers
        if len(self._between) > 1 and _SHARE * self._spent > began - self._began:
            return
        tensors, path = self._look("backward")
        self._between.append((tensors, TimeSpan(began, time.monotonic_ns())))
        self._paths.append(path)
        self._spent += time.monotonic_ns() - began

    def end(self) -> None:
        """The recording has ended."""
        _running.discard(self)

    def found(self, started: int) -> tuple[list[tuple[TensorTable, TimeSpan]], list[ModulePath]]:
        """Return what was seen, each with when all of it was there, and the paths, latest first.

        Args:
            started: when the recording began, in monotonic nanoseconds.
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
    """Find names for all recordings that are on; called in the middle of the program."""
    for censuses in [*_running]:
        with contextlib.suppress(Exception):
            censuses.look()


_MOST = 1 << 14
"""Marks that nobody asked for."""
_mark_numbers = itertools.count()
"""Of all recordings: they share the native log, which knows a mark by its number."""


class HostRecorder:
    """Records what a counting allocator hands out, from its making until it is read to the end.

    Args:
        options: of the recording.
        native: records the allocator.
        hooks: what the framework adds to it.

    Raises:
        NativeUnavailable: there are no stacks on this Python.
    """

    def __init__(
        self, options: RecordOptions, native: NativeRecorder, hooks: FrameworkHooks
    ) -> None:
        self._options = options
        self._marks: dict[int, tuple[str, int]] = {}
        """Name and time of each, by number."""
        self._latest: deque[int] = deque()
        """Numbers of the marks of :meth:`note`."""
        self._native = native
        self._hooks = hooks
        # what was already allocated is counted in by the first to watch
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

    def mark(self, name: str) -> None:
        """Give this moment a name."""
        self._mark(name)

    def note(self, name: str) -> None:
        """Give this moment a name that nobody asked for; of very many the latest stay."""
        self._latest.append(self._mark(name))
        if len(self._latest) > _MOST:
            self._marks.pop(self._latest.popleft(), None)

    def _mark(self, name: str) -> int:
        number = next(_mark_numbers)
        self._marks[number] = name, time.monotonic_ns() - self._started
        self._native.mark(number)
        return number

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
            marks=dict(self._marks),
            started=self._started,
            amend=self._hooks.amend,
        )
        # what the framework knows of its events it knows now
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
    """Rows that were read, and what makes logs of them: nothing of the program's is held."""

    maker: LogMaker
    taken: LogRows
    tables: list[tuple[TensorTable, TimeSpan]]
    marks: dict[int, tuple[str, int]]
    """Name and time of each, by number."""
    started: int
    amend: Callable[[EventLog, Amendment], None] | None

    def log(self) -> EventLog:
        """Return the log of all rows."""
        rows = self.taken.rows
        log = self._made(rows, event_lifetimes(rows))
        places = dict(self.taken.marks)
        for number, (name, moment) in self.marks.items():
            row = places.get(number)
            if row is not None:
                log.marks.append(Mark(name, row, moment))
            elif self.taken.dropped and not name.startswith(OWN_MARK):
                log.dropped_marks.append(name)
        log.sources = sources_of(log)
        return log

    def peak(self) -> EventLog:
        """Return the log of what was resident at the highest instant among dropped events."""
        rows = self.taken.dropped_peak
        return self._made(rows, dropped_lifetimes(rows, self.taken.rows))

    def _made(self, rows: Columns, lives: BlockLifetimes) -> EventLog:
        log = self.maker.log(rows, self.started)
        found = ((names, lives.rows_during(span)) for names, span in self._names)
        name_blocks(log, rows.owner, found)
        if self.amend is not None:
            self.amend(log, Amendment(self.started, self.maker.thread))
        return log

    @functools.cached_property
    def _names(self) -> list[tuple[AddressNames, TimeSpan]]:
        return [(AddressNames(table), span) for table, span in self.tables]


def _at_once(make: Callable[[], EventLog]) -> EventLog:
    return make()


def gaps(taken: LogRows, no_ops: str | None) -> tuple[str, ...]:
    """Notes on gaps of the recording; ``no_ops`` is why no operators are known."""
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
