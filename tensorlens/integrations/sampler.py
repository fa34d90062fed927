"""Follows loops over batches by what a callback is told, and reads the counters meanwhile.

Knows nothing of Keras. It holds a few numbers an epoch, and nothing of a batch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

from tensorlens.frameworks.base import Counter
from tensorlens.integrations.epoch_report import (
    EVALUATE,
    FIT,
    PREDICT,
    Epoch,
    EpochLevel,
    LoopReport,
    SteadyGrowth,
)
from tensorlens.lines.region import DeviceLevel, MeasuredRegion
from tensorlens.lines.report import DeviceSource
from tensorlens.recording.oom import address_reserve

_INEXACT_LEAST = 1 << 20
"""Bytes by which a counter of more than tensors, such as the C heap, changes for no reason."""
_SAMPLES = 256
"""How many levels a trend keeps at most; at twice as many every other one goes."""
_WINDOWS = 8
_RULES = {"batch": (2, 16), "epoch": (1, 3), "call": (1, 3)}
"""How many at the beginning make the optimizer's state, caches and buffers; and how many levels
must be known after them before growth is spoken of."""


class Trend:
    """Whether what is allocated at the ends of batches, epochs or calls grows.

    It keeps a few hundred of the levels.
    """

    def __init__(self, per: str) -> None:
        self._per = per
        self._every = 1
        self._taken = 0
        self._count = 0
        self._samples: list[tuple[int, Sequence[int]]] = []

    def take(self, allocated: Sequence[int], count: int = 1) -> None:
        """Take what each slot has allocated after ``count`` batches, epochs or calls more."""
        if self._taken % self._every == 0:
            self._samples.append((self._count, tuple(allocated)))
        self._taken += 1
        self._count += count
        if len(self._samples) == 2 * _SAMPLES:
            self._every *= 2
            self._samples = self._samples[::2]

    def growth(self, slot: int, least: int) -> SteadyGrowth | None:
        """Return how much each leaves behind, None where it is not steady.

        The lowest levels of eight spans, one after the other, must rise: a batch that is larger
        than others, or a buffer that is emptied now and then, does not.

        Args:
            slot: which counter.
            least: growth of fewer bytes in all is none: of counters that are not exact.
        """
        warmup, fewest = _RULES[self._per]
        points = [
            (at, levels[slot])
            for at, levels in self._samples
            if at >= warmup and slot < len(levels) and levels[slot] >= 0
        ]
        if len(points) < fewest:
            return None
        windows = min(_WINDOWS, len(points))
        size = len(points) / windows
        lowest = [
            min(points[round(part * size) : round((part + 1) * size)], key=lambda each: each[1])
            for part in range(windows)
        ]
        grown = lowest[-1][1] - lowest[0][1]
        if grown < max(1, least) or any(b[1] <= a[1] for a, b in pairwise(lowest)):
            return None
        # what is made once, as at the first validation, belongs to no batch
        each = median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(lowest))
        return SteadyGrowth(self._per, each, self._count)


class _Loop:
    """One ``fit``, ``evaluate`` or ``predict`` that runs."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.epochs: list[Epoch] = [] if kind == FIT else [Epoch(0)]
        self.by_batch, self.by_epoch = Trend("batch"), Trend("epoch")
        self.first_batch: int | None = None
        """Number of the batch that runs; None between batches."""

    @property
    def running(self) -> Epoch | None:
        """The epoch that runs, or the one pass over batches."""
        return self.epochs[-1] if self.epochs and not self.epochs[-1].ended else None

    def change(self, **fields: Any) -> None:
        """Exchange fields of the epoch that runs, if one does."""
        if self.running is not None:
            self.epochs[-1] = replace(self.epochs[-1], **fields)


class Follower:
    """The loop that runs now, and the figures of the last one.

    Every method but :meth:`close` is called in the thread that runs the loop; what comes from
    another is left out.
    """

    def __init__(self, region: MeasuredRegion | None = None, notes: Sequence[str] = ()) -> None:
        self._region = MeasuredRegion() if region is None else region
        self._notes = tuple(notes)
        self._loops: list[_Loop] = []
        self._calls = {kind: Trend("call") for kind in (FIT, EVALUATE, PREDICT)}
        """Of host memory at the ends of loops, by kind."""

    def begin(self, kind: str) -> None:
        """A loop begins; inside a ``fit`` that runs, ``evaluate`` is its validation."""
        if self._is_here() and kind == EVALUATE:
            self._take(None)
        else:
            # whatever is left was ended by an exception
            self._loops.clear()
            self._region.begin()
        self._loops.append(_Loop(kind))

    def epoch_begins(self, number: int) -> None:
        """An epoch of the innermost loop begins."""
        if self._is_here():
            self._region.read()
            self._loops[-1].epochs.append(Epoch(number))

    def batch_begins(self, number: int) -> None:
        """A batch begins, or the first of several that run as one."""
        if self._is_here():
            self._take(None)
            self._loops[-1].first_batch = number

    def batch_ends(self, number: int) -> Sequence[DeviceLevel]:
        """The last of the batches that began has ended; return the read."""
        if not self._is_here():
            return ()
        loop = self._loops[-1]
        # where nobody said that it began, it is this one alone
        first = number if loop.first_batch is None else loop.first_batch
        loop.first_batch = None
        read = self._take((first, number))
        loop.by_batch.take([each.allocated for each in read], number - first + 1)
        return read

    def epoch_ends(self) -> Epoch | None:
        """The epoch has ended; return what it took."""
        if not self._is_here() or self._loops[-1].running is None:
            return None
        loop = self._loops[-1]
        loop.by_epoch.take([each.allocated for each in self._take(None)])
        loop.change(ended=True)
        return loop.epochs[-1]

    def end(self, kind: str) -> LoopReport | None:
        """A loop has ended; None for the validation of a ``fit``."""
        if not self._is_here() or self._loops[-1].kind != kind:
            return None
        if kind != FIT:
            self.epoch_ends()
        if len(self._loops) > 1:
            validation = self._loops.pop()
            self._loops[-1].change(validation=validation.epochs[-1].devices)
            return None
        self._calls[kind].take([each.allocated for each in self._region.read()[:1]])
        report = self.report()
        self.close()
        return report

    def report(self) -> LoopReport | None:
        """Return what the loop that runs has taken so far; None where none runs."""
        if not self._loops:
            return None
        loop, counters = self._loops[0], self._region.counters
        growth = {
            counter.device: self._growth(loop, slot, counter)
            for slot, counter in enumerate(counters)
        }
        return LoopReport(
            kind=loop.kind,
            epochs=tuple(each for each in loop.epochs if each.ended or each.devices),
            growth={name: each for name, each in growth.items() if each},
            devices=tuple(
                DeviceSource(each.device, each.source, each.precision, dict(each.missing))
                for each in counters
            ),
            notes=(*self._notes, *self._region.notes()),
        )

    def explain(self, error: BaseException) -> None:
        """Add to an exception for want of memory what was resident, and which batch ran."""
        report, where = self.report(), self.where()
        before = len(getattr(error, "__notes__", ()))
        address_reserve.explain(error)
        if report is not None and len(getattr(error, "__notes__", ())) > before:
            peaks = report.peaks_text()
            earlier = f"; before it the peak was {peaks}" if peaks else ""
            error.add_note(f"tensorlens: it was {where}{earlier}")

    def where(self) -> str | None:
        """Return which batch of which loop runs now, or the last that ended, in words."""
        if not self._loops:
            return None
        loop = self._loops[-1]
        running = loop.running
        if running is None:
            return loop.kind
        batch = running.batches if loop.first_batch is None else loop.first_batch
        epoch = f" of epoch {running.number + 1}" if loop.kind == FIT else ""
        return f"batch {batch + 1}{epoch} of {loop.kind}"

    def close(self) -> None:
        """Forget what runs; from any thread."""
        self._loops.clear()
        self._region.end()

    def _is_here(self) -> bool:
        return bool(self._loops) and self._region.thread == threading.get_ident()

    def _take(self, ran: tuple[int, int] | None) -> Sequence[DeviceLevel]:
        """Read, and charge it to the innermost pass; ``ran`` is the batches since the last read."""
        read, loop = self._region.read(), self._loops[-1]
        if (running := loop.running) is None:
            return read
        devices = dict(running.devices)
        for each in read:
            known = devices.get(each.device)
            if known is None or each.peak > known.peak:
                known = EpochLevel(each.allocated, each.peak, ran if each.peak >= 0 else None)
            devices[each.device] = replace(known, allocated=each.allocated)
        loop.change(devices=devices, batches=running.batches + (ran[1] - ran[0] + 1 if ran else 0))
        return read

    def _growth(self, loop: _Loop, slot: int, counter: Counter) -> tuple[SteadyGrowth, ...]:
        least = 1 if counter.precision.startswith("exact") else _INEXACT_LEAST
        inside = loop.by_batch.growth(slot, least) or loop.by_epoch.growth(slot, least)
        calls = None if slot else self._calls[loop.kind].growth(slot, least)
        return tuple(each for each in (inside, calls) if each is not None)
