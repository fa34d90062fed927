"""Follows loops over batches by what a callback is told, and reads the counters meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter_ns

from tensorlens.frameworks.base import Counter
from tensorlens.integrations.epoch_report import (
    EVALUATE,
    FIT,
    Epoch,
    Growth,
    Level,
    LoopReport,
    Pass,
    Trend,
    growth_of,
)
from tensorlens.lines.region import MeasuredRegion
from tensorlens.lines.report import DeviceSource
from tensorlens.lines.tracing.accounting import WIDTH

_MOST_CALLS = 10_000
_INEXACT_LEAST = 1 << 20
"""Bytes by which a counter of more than tensors, such as the C heap, changes for no reason."""


_SLOW_NS = 500_000
"""A read that takes longer is not made at every batch."""
_TRIES = 4
"""Reads that must have taken longer, one of which may have waited for a processor."""


class _Loop:
    """One ``fit``, ``evaluate`` or ``predict`` that runs."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.epochs: list[Epoch] = []
        self.running: Pass | None = None if kind == FIT else Pass()
        self.validation: dict[str, Level] = {}
        self.trend = Trend()
        self.first_batch: int | None = None
        """Number of the batch that runs; None between batches."""


class Follower:
    """The loop that runs now, and the figures of the last one.

    Every method but :meth:`close` is called in the thread that runs the loop; what comes from
    another is left out.
    """

    def __init__(self, span: MeasuredRegion | None = None, notes: Sequence[str] = ()) -> None:
        self._span = MeasuredRegion() if span is None else span
        self._notes = tuple(notes)
        self._fastest = 0
        """Nanoseconds that the fastest read of this loop took."""
        self._reads = 0
        """Reads of this loop."""
        self._loops: list[_Loop] = []
        self._names: list[str] = []
        self._calls: dict[str, list[int]] = {}
        """Host memory allocated at the end of each loop, by kind."""

    def begin(self, kind: str) -> None:
        """A loop begins; inside a ``fit`` that runs, ``evaluate`` is its validation."""
        inside = bool(self._loops) and self._is_here() and kind == EVALUATE
        if not inside:
            # whatever is left was ended by an exception
            self._loops.clear()
            self._reads = 0
            self._span.begin()
        else:
            self._take(None)
        self._loops.append(_Loop(kind))

    def epoch_begins(self, number: int) -> None:
        """An epoch of the innermost loop begins."""
        if self._is_here():
            self._span.read()
            loop = self._loops[-1]
            loop.running, loop.validation = Pass(number), {}

    def batch_begins(self, number: int) -> None:
        """A batch begins, or the first of several that run as one."""
        if self._is_here():
            if not self._is_slow():
                self._take(None)
            self._loops[-1].first_batch = number

    def batch_ends(self, number: int) -> Sequence[int]:
        """The last of the batches that began has ended; return the read."""
        if not self._is_here():
            return ()
        loop = self._loops[-1]
        # where nobody said that it began, it is this one alone
        first = number if loop.first_batch is None else loop.first_batch
        loop.first_batch = None
        if loop.running is not None:
            loop.running.batches += number - first + 1
        if self._is_slow():
            return ()
        figures = self._take((first, number))
        loop.trend.take(figures[::WIDTH], number - first + 1)
        return figures

    def epoch_ends(self) -> Epoch | None:
        """The epoch has ended; return what it took."""
        if not self._is_here() or self._loops[-1].running is None:
            return None
        self._take(None)
        loop = self._loops[-1]
        epoch = self._epoch(loop, ended=True)
        loop.epochs.append(epoch)
        loop.running = None
        return epoch

    def end(self, kind: str) -> LoopReport | None:
        """A loop has ended; None for the validation of a ``fit``."""
        if not self._is_here() or self._loops[-1].kind != kind:
            return None
        if kind != FIT:
            self.epoch_ends()
        if len(self._loops) > 1:
            validation = self._loops.pop()
            self._loops[-1].validation = dict(validation.epochs[-1].devices)
            return None
        figures = self._span.read()
        calls = self._calls.setdefault(kind, [])
        calls.append(figures[0] if figures else -1)
        del calls[:-_MOST_CALLS]
        report = self.report()
        self._loops.clear()
        self._span.end()
        return report

    def report(self) -> LoopReport | None:
        """Return what the loop that runs has taken so far; None where none runs."""
        if not self._loops:
            return None
        loop = self._loops[0]
        epochs = list(loop.epochs)
        if loop.running is not None and loop.running.allocated:
            epochs.append(self._epoch(loop, ended=False))
        return LoopReport(
            kind=loop.kind,
            epochs=tuple(epochs),
            growth={
                name: found
                for slot, name in enumerate(self.names())
                if (found := self._growth(loop, slot))
            },
            devices=tuple(map(_source, self._span.counters)),
            notes=(*self._notes, *self._span.notes(), *self._slow_note()),
        )

    def where(self) -> str | None:
        """Return which batch of which loop runs now, or the last that ended, in words."""
        if not self._loops:
            return None
        loop = self._loops[-1]
        running = loop.running
        if running is None:
            return loop.kind
        batch = running.batches if loop.first_batch is None else loop.first_batch
        text = f"batch {batch + 1}"
        if loop.kind == FIT:
            return f"{text} of epoch {running.number + 1} of fit"
        return f"{text} of {loop.kind}"

    def names(self) -> list[str]:
        """Return the devices in the order of a read's slots."""
        counters = self._span.counters
        if len(self._names) != len(counters):
            self._names = [counter.device for counter in counters]
        return self._names

    def close(self) -> None:
        """Forget what runs; from any thread."""
        self._loops.clear()
        self._span.end()

    def _is_here(self) -> bool:
        return bool(self._loops) and self._span.thread == threading.get_ident()

    def _is_slow(self) -> bool:
        return self._reads >= _TRIES and self._fastest > _SLOW_NS

    def _slow_note(self) -> list[str]:
        if not self._is_slow():
            return []
        milliseconds = self._fastest / 1e6
        return [
            f"a read of the counters takes {milliseconds:.1f} ms here: they are read at the ends of"
            " epochs, not of batches"
        ]

    def _take(self, place: tuple[int, int] | None) -> Sequence[int]:
        """Read, and charge it to the innermost pass."""
        began = perf_counter_ns()
        figures = self._span.read()
        took = perf_counter_ns() - began
        self._fastest = min(took, self._fastest) if self._reads else took
        self._reads += 1
        running = self._loops[-1].running
        if running is not None:
            running.take(figures, place)
        return figures

    def _epoch(self, loop: _Loop, *, ended: bool) -> Epoch:
        running = loop.running
        assert running is not None
        levels = running.levels(self.names())
        return Epoch(running.number, running.batches, levels, loop.validation, ended)

    def _growth(self, loop: _Loop, slot: int) -> tuple[Growth, ...]:
        counter = self._span.counters[slot]
        least = 1 if is_exact(counter) else _INEXACT_LEAST
        name = counter.device
        ends = [epoch.devices[name].allocated for epoch in loop.epochs if name in epoch.devices]
        found = loop.trend.growth(slot, least)
        if found is None and loop.kind == FIT:
            found = growth_of(ends, "epoch", least)
        calls = growth_of(self._calls.get(loop.kind, []), "call", least) if not slot else None
        return tuple(each for each in (found, calls) if each is not None)


def is_exact(counter: Counter) -> bool:
    """Tell whether a counter's figures are those of tensors alone."""
    return counter.precision.startswith("exact")


def _source(counter: Counter) -> DeviceSource:
    return DeviceSource(counter.device, counter.source, counter.precision, dict(counter.missing))
