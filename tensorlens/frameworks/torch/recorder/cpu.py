"""A recording of host memory while it runs."""

from __future__ import annotations

import linecache
import time
from collections.abc import Sequence

from tensorlens.frameworks.base import RecordOptions
from tensorlens.frameworks.building import NativeUnavailable
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.census.watching import watch
from tensorlens.frameworks.torch.native.recorder import Columns, NativeRecorder, Taken
from tensorlens.frameworks.torch.recorder.labels import Names, label
from tensorlens.frameworks.torch.recorder.lifetimes import (
    Lifetimes,
    Span,
    of_dropped,
    of_events,
)
from tensorlens.frameworks.torch.recorder.logs import LogMaker, sources_of
from tensorlens.frameworks.torch.recorder.naming import Naming
from tensorlens.records.events import EventLog, Mark
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
        self._marks: list[tuple[str, int]] = []
        """Name and time of each."""
        self._native = _native()
        # what torch already allocated is counted in by the first to watch
        unwatch = watch()
        try:
            self._naming = Naming(options, self._native)
            self._span = self._native.begin(options.limit, options.ops)
            self._wall, self._started = time.time(), time.monotonic_ns()
            self._naming.begin()
        finally:
            unwatch()

    def mark(self, name: str) -> None:
        """Give this moment a name."""
        number = len(self._marks)
        self._marks.append((name, time.monotonic_ns() - self._started))
        self._native.mark(self._key(number))

    def read(self, end: bool) -> tuple[EventLog, Origin]:
        """Return the log so far; ``end`` stops recording."""
        if end:
            self._naming.end()
        taken = self._native.read(self._span, end)
        found = self._naming.found(self._started)
        maker = LogMaker(self._native, self._naming.paths(), taken.thread)
        log = self._log(maker, taken.rows, of_events(taken.rows), found)
        self._add_marks(log, taken)
        log.sources = sources_of(log, linecache.getlines)
        peaks = {}
        if len(taken.dropped_peak.kind):
            lives = of_dropped(taken.dropped_peak, taken.rows)
            peaks["cpu"] = self._log(maker, taken.dropped_peak, lives, found)
        return log, Origin(
            source={"cpu": cpu.CpuCounter.source},
            started=self._wall,
            dropped=taken.dropped,
            dropped_peaks=peaks,
            notes=tuple(self._notes(taken)),
        )

    def _log(
        self,
        maker: LogMaker,
        rows: Columns,
        lives: Lifetimes,
        found: Sequence[tuple[Names, Span]],
    ) -> EventLog:
        log = maker.log(rows, self._started)
        label(log, rows.owner, ((names, lives.there(span)) for names, span in found))
        return log

    def _add_marks(self, log: EventLog, taken: Taken) -> None:
        places = dict(taken.marks)
        for number, (name, moment) in enumerate(self._marks):
            row = places.get(self._key(number))
            if row is not None:
                log.marks.append(Mark(name, row, moment))
            elif taken.dropped:
                log.dropped_marks.append(name)

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
