"""Follower of loops over batches: reads the counters at each call of a callback.

It knows nothing of Keras, and keeps a few numbers for each epoch but none for a batch.
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
from tensorlens.recording import oom

_INEXACT_MIN_GROWTH = 1 << 20
"""Bytes by which an inexact counter, such as the C heap, may change without a leak."""
_MAX_LEVELS = 256
"""Levels that a trend keeps; at twice as many every other one is dropped."""
_WINDOWS = 8
_RULES = {"batch": (2, 16), "epoch": (1, 3), "call": (1, 3)}
"""Numbers of warm-up rounds, which make optimizer state and caches, and of levels needed after them
to judge growth."""


class Trend:
    """Test for growth of the levels at the ends of batches, epochs or calls.

    It keeps a few hundred levels.
    """

    def __init__(self, per: str) -> None:
        self._per = per
        self._every = 1
        self._taken = 0
        self._count = 0
        self._samples: list[tuple[int, Sequence[int]]] = []

    def take(self, allocated: Sequence[int], count: int = 1) -> None:
        """Add the level of each slot after ``count`` more batches, epochs or calls."""
        if self._taken % self._every == 0:
            self._samples.append((self._count, tuple(allocated)))
        self._taken += 1
        self._count += count
        if len(self._samples) == 2 * _MAX_LEVELS:
            self._every *= 2
            self._samples = self._samples[::2]

    def growth(self, slot: int, least: int) -> SteadyGrowth | None:
        """Return the growth per batch, epoch or call; None if it is not steady.

        The lowest levels of up to eight successive spans must rise. Large batches, or buffers
        that are emptied now and then, do not cause that.

        Args:
            slot: index of the counter.
            least: total growth in bytes below which there is none.
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
        # the median ignores single jumps, as at the first validation
        rate = median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(lowest))
        return SteadyGrowth(self._per, rate, self._count)


class _Loop:
    """A running ``fit``, ``evaluate`` or ``predict``."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.epochs: list[Epoch] = [] if kind == FIT else [Epoch(0)]
        self.by_batch, self.by_epoch = Trend("batch"), Trend("epoch")
        self.first_batch: int | None = None
        """Number of the running batch; None between batches."""

    @property
    def running(self) -> Epoch | None:
        """The running epoch, or the one pass over batches."""
        return self.epochs[-1] if self.epochs and not self.epochs[-1].ended else None

    def change(self, **fields: Any) -> None:
        """Replace fields of the running epoch, if any."""
        if self.running is not None:
            self.epochs[-1] = replace(self.epochs[-1], **fields)


class Follower:
    """The running loop with its validation, and the trend of host memory over finished loops.

    All methods but :meth:`close` must be called in the loop's thread; other calls are ignored.
    """

    def __init__(self, region: MeasuredRegion | None = None, notes: Sequence[str] = ()) -> None:
        self._region = MeasuredRegion() if region is None else region
        self._notes = tuple(notes)
        self._loops: list[_Loop] = []
        self._calls = {kind: Trend("call") for kind in (FIT, EVALUATE, PREDICT)}
        """Trends of host memory at the ends of loops, by kind."""

    def begin(self, kind: str) -> None:
        """Begin a loop; inside a running ``fit``, ``evaluate`` is its validation."""
        is_validation = self._is_here() and kind == EVALUATE and self._loops[0].kind == FIT
        # an exception ended the loops that are left
        del self._loops[1 if is_validation else 0 :]
        if is_validation:
            self._take(None)
        else:
            self._region.begin()
        self._loops.append(_Loop(kind))

    def epoch_begins(self, number: int) -> None:
        """Begin an epoch of the innermost loop."""
        if self._is_here():
            self._region.read()
            self._loops[-1].epochs.append(Epoch(number))

    def batch_begins(self, number: int) -> None:
        """Begin a batch, or the first of several that run as one."""
        if self._is_here():
            self._take(None)
            self._loops[-1].first_batch = number

    def batch_ends(self, number: int) -> Sequence[DeviceLevel]:
        """End the batches that began; return the levels."""
        if not self._is_here():
            return ()
        loop = self._loops[-1]
        # without a begin it is this one alone
        first = number if loop.first_batch is None else loop.first_batch
        loop.first_batch = None
        read = self._take((first, number))
        loop.by_batch.take([each.allocated for each in read], number - first + 1)
        return read

    def epoch_ends(self) -> Epoch | None:
        """End the epoch and return it."""
        if not self._is_here() or self._loops[-1].running is None:
            return None
        loop = self._loops[-1]
        loop.by_epoch.take([each.allocated for each in self._take(None)])
        loop.change(ended=True)
        return loop.epochs[-1]

    def end(self, kind: str) -> LoopReport | None:
        """End a loop and return its report; None for the validation of a ``fit``."""
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
        """Return the report on the running loop so far; None if none runs."""
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
        """Add resident memory and the running batch to an out-of-memory exception."""
        report, where = self.report(), self.where()
        before = len(getattr(error, "__notes__", ()))
        oom.explain(error)
        if report is not None and len(getattr(error, "__notes__", ())) > before:
            peaks = report.peaks_text()
            earlier = f"; before it the peak was {peaks}" if peaks else ""
            error.add_note(f"tensorlens: it was {where}{earlier}")

    def where(self) -> str | None:
        """Describe the running batch and loop, or the last that ended."""
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
        """Drop the running loops; from any thread."""
        self._loops.clear()
        self._region.end()

    def _is_here(self) -> bool:
        return bool(self._loops) and self._region.thread == threading.get_ident()

    def _take(self, ran: tuple[int, int] | None) -> Sequence[DeviceLevel]:
        """Read levels for the innermost epoch; ``ran`` has the batches since the last read."""
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
        least = 1 if counter.precision.startswith("exact") else _INEXACT_MIN_GROWTH
        inside = loop.by_batch.growth(slot, least) or loop.by_epoch.growth(slot, least)
        calls = None if slot else self._calls[loop.kind].growth(slot, least)
        return tuple(each for each in (inside, calls) if each is not None)
