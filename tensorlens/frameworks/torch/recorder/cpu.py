"""A recording of host memory while it runs."""

from __future__ import annotations

import linecache
import time
from collections.abc import Mapping

from tensorlens.frameworks.base import RecordOptions
from tensorlens.frameworks.building import NativeUnavailable
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.census.watching import watch
from tensorlens.frameworks.torch.native.recorder import Columns, NativeRecorder, Taken
from tensorlens.frameworks.torch.recorder.labels import Names, label, starts, unfreed
from tensorlens.frameworks.torch.recorder.logs import LogMaker, sources_of
from tensorlens.frameworks.torch.recorder.naming import Naming
from tensorlens.records.events import ALLOC, EventLog, Mark
from tensorlens.records.recordings import Origin

_recorder: NativeRecorder | None = None


def _native() -> NativeRecorder:
    global _recorder
    counter = cpu.cpu_counter()
    if not isinstance(counter, cpu.CpuCounter):
        raise NativeUnavailable(
            f"host memory cannot be recorded: it is counted by {counter.source}"
            f" ({cpu.fallback_reason() or 'TENSORLENS_COUNTER asks for it'})"
        )
    if _recorder is None:
        _recorder = NativeRecorder(counter.allocator)
    return _recorder


class HostRecorder:
    """Records what torch's CPU allocator hands out, from its making until it is read to the end.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
        NativeUnavailable: there is no native counter, or no stacks on this Python.
    """

    def __init__(self, options: RecordOptions) -> None:
        self._options = options
        self._marks: list[tuple[str | None, int]] = []
        """Name and time of each; those that only the naming needs have no name."""
        self._native = _native()
        # what torch already allocated is counted in by the first to watch
        unwatch = watch()
        try:
            self._naming = Naming(options, self._native, lambda: self._mark(None))
            self._span = self._native.begin(options.limit, options.ops)
            self._wall, self._started = time.time(), time.monotonic_ns()
            self._naming.begin()
        finally:
            unwatch()

    def mark(self, name: str) -> None:
        """Give this moment a name."""
        self._mark(name)

    def _mark(self, name: str | None) -> int:
        number = len(self._marks)
        self._marks.append((name, time.monotonic_ns() - self._started))
        self._native.mark(self._key(number))
        return number

    def read(self, end: bool) -> tuple[EventLog, Origin]:
        """Return the log so far; ``end`` stops recording."""
        if end:
            self._naming.end()
        taken = self._native.read(self._span, end)
        after = self._naming.after()
        maker = LogMaker(self._native, self._naming.paths(), taken.thread)
        log = maker.log(taken.rows, self._started)
        places = dict(taken.marks)
        between = self._naming.between(log, lambda number: places.get(self._key(number)))
        found = self._at_the_ends(self._early(taken.rows, starts(log)), after, unfreed(log))
        label(log, taken.rows.owner, [*found[:1], *between, *found[1:]])
        self._add_marks(log, places)
        log.sources = sources_of(log, linecache.getlines)
        return log, Origin(
            source={"cpu": cpu.CpuCounter.source},
            started=self._wall,
            dropped=taken.dropped,
            dropped_peaks=self._dropped_peaks(maker, taken, after),
            notes=tuple(self._notes(taken)),
        )

    def _at_the_ends(
        self, early: list[int], after: Names | None, late: list[int]
    ) -> list[tuple[Names, list[int]]]:
        """Return the censuses at the beginning and the end with the rows of what was there."""
        if self._naming.before is None or after is None:
            return []
        return [(self._naming.before, early), (after, late)]

    def _early(self, rows: Columns, first: int) -> list[int]:
        """Return those of the first rows that were there when the recording began."""
        return [row for row in range(first) if rows.time[row] < self._started]

    def _dropped_peaks(
        self, maker: LogMaker, taken: Taken, after: Names | None
    ) -> dict[str, EventLog]:
        rows, dropped = taken.rows, taken.dropped_peak
        if not len(dropped.kind):
            return {}
        log = maker.log(dropped, self._started)
        alive = {
            (rows.address[row], rows.time[row])
            for row, pair in enumerate(rows.pair)
            if pair < 0 and rows.kind[row] <= ALLOC
        }
        late = [
            row
            for row, block in enumerate(zip(dropped.address, dropped.time, strict=True))
            if block in alive
        ]
        early = self._early(dropped, len(log))
        label(log, dropped.owner, self._at_the_ends(early, after, late))
        return {"cpu": log}

    def _add_marks(self, log: EventLog, places: Mapping[int, int]) -> None:
        for number, (name, moment) in enumerate(self._marks):
            row = places.get(self._key(number))
            if row is not None and name is not None:
                log.marks.append(Mark(name, row, moment))

    def _key(self, number: int) -> int:
        # the log is shared: a mark's number tells whose it is
        return (id(self) << 20 | number) & (2**63 - 1)

    def _notes(self, taken: Taken) -> list[str]:
        notes = []
        if self._options.ops and self._native.no_ops is not None:
            notes.append(f"operators and autograd's nodes are not known: {self._native.no_ops}")
        if taken.lost_stacks:
            notes.append(f"{taken.lost_stacks} events have no stack: there are too many stacks")
        return notes
