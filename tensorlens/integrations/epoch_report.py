"""The memory of a loop over batches: by epoch, with the batch of the peak, and whether it grows.

Knows nothing of Keras: it is told when batches and epochs begin and end, and what the counters
read then. It holds a few numbers an epoch, and nothing of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from tensorlens.frameworks.base import UNKNOWN
from tensorlens.lines.report import DeviceSource
from tensorlens.lines.tracing.accounting import WIDTH

FIT, EVALUATE, PREDICT = "fit", "evaluate", "predict"

_SAMPLES = 256
"""How many ends of batches a trend keeps at most; at twice as many every other one goes."""
_WINDOWS = 8
_FEWEST = 16
"""Ends of batches that must be known before growth is spoken of."""
_WARMUP = 2
"""Batches at the beginning that make the optimizer's state, caches and buffers."""


@dataclass(frozen=True, slots=True)
class Level:
    """Bytes that one device held in one epoch, or in a run of ``evaluate`` or ``predict``.

    -1 is unknown.
    """

    allocated: int
    """When it ended."""
    peak: int
    """The most at any instant."""
    batches: tuple[int, int] | None
    """Numbers of the first and the last batch that ran at that instant, from 0, as Keras counts
    them: several batches where ``steps_per_execution`` is more than 1. None is between batches."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of a ``fit``, or the one pass of an ``evaluate`` or a ``predict``."""

    number: int
    """As Keras counts, from 0."""
    batches: int
    devices: Mapping[str, Level]
    validation: Mapping[str, Level] = field(default_factory=dict)
    """Of the ``evaluate`` that the epoch ended with; empty without one."""
    ended: bool = True
    """False where an exception or an interrupt cut it short, or while it runs."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that batches, epochs or calls leave behind one after the other."""

    per: str
    """``batch``, ``epoch`` or ``call``."""
    nbytes: float
    """Bytes each."""
    count: int
    """How many of them were looked at."""


@dataclass(frozen=True, slots=True)
class LoopReport:
    """Memory of one ``fit``, ``evaluate`` or ``predict``."""

    kind: str
    """:data:`FIT`, :data:`EVALUATE` or :data:`PREDICT`."""
    epochs: tuple[Epoch, ...]
    growth: Mapping[str, tuple[Growth, ...]]
    """By device; nothing for one that does not grow."""
    devices: tuple[DeviceSource, ...]
    largest: tuple[tuple[str, str], ...] = ()
    """Size and what it is, of the largest tensors at the end."""
    notes: tuple[str, ...] = ()

    def peak(self, device: str) -> tuple[int, Epoch] | None:
        """Return the most that was allocated, and in which epoch; None where it is unknown."""
        found = [
            (level.peak, epoch)
            for epoch in self.epochs
            for level in (epoch.devices.get(device), epoch.validation.get(device))
            if level is not None and level.peak >= 0
        ]
        return max(found, key=lambda pair: pair[0], default=None)

    def __str__(self) -> str:
        from tensorlens.integrations.epoch_report_text import text

        return text(self)


class Pass:
    """One pass over batches while it runs: an epoch's, or that of an ``evaluate``."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.batches = 0
        self.allocated: list[int] = []
        self._peaks: list[int] = []
        self._places: list[tuple[int, int] | None] = []

    def take(self, figures: Sequence[int], place: tuple[int, int] | None) -> None:
        """Take a read; ``place`` is the batches that ran since the one before, None for none."""
        peaks = figures[1::WIDTH]
        if len(peaks) != len(self._peaks):
            added = len(peaks) - len(self._peaks)
            self._peaks += [UNKNOWN] * added
            self._places += [None] * added
        self.allocated = list(figures[::WIDTH])
        for slot, peak in enumerate(peaks):
            if peak > self._peaks[slot]:
                self._peaks[slot] = peak
                self._places[slot] = place

    def levels(self, names: Sequence[str]) -> dict[str, Level]:
        """Return what each device held; ``names`` are those of the slots."""
        # a peak that was read before the device's first use is below what is allocated now
        return {
            name: Level(now, max(now, peak) if peak >= 0 else UNKNOWN, place)
            for name, now, peak, place in zip(
                names, self.allocated, self._peaks, self._places, strict=False
            )
        }


class Trend:
    """Whether what is allocated at the ends of batches grows, from a few hundred of them."""

    def __init__(self) -> None:
        self._every = 1
        self._count = 0
        self._batches = 0
        self._at: list[int] = []
        self._levels: list[Sequence[int]] = []

    def take(self, allocated: Sequence[int], batches: int = 1) -> None:
        """Take what each slot has allocated after so many batches more."""
        if self._count >= len(self._at) * self._every:
            self._at.append(self._batches)
            self._levels.append(tuple(allocated))
        self._count += 1
        self._batches += batches
        if len(self._at) == 2 * _SAMPLES:
            self._every *= 2
            self._at, self._levels = self._at[::2], self._levels[::2]

    def growth(self, slot: int, least: int) -> Growth | None:
        """Return how much each batch leaves behind, None where it is not steady.

        The lowest ends of batches of each of eight spans, one after the other, must rise: a
        batch that is larger than others, or a buffer that is emptied now and then, does not.

        Args:
            slot: which counter.
            least: growth of fewer bytes in all is none: of counters that are not exact.
        """
        points = [
            (at, levels[slot])
            for at, levels in zip(self._at, self._levels, strict=True)
            if at >= _WARMUP and slot < len(levels) and levels[slot] >= 0
        ]
        if len(points) < _FEWEST:
            return None
        size = len(points) / _WINDOWS
        lowest = [
            min(points[round(part * size) : round((part + 1) * size)], key=lambda each: each[1])
            for part in range(_WINDOWS)
        ]
        grown = lowest[-1][1] - lowest[0][1]
        if grown < max(1, least) or any(b[1] <= a[1] for a, b in pairwise(lowest)):
            return None
        # what is made once, as at the first validation, belongs to no batch
        each = median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(lowest))
        return Growth("batch", each, self._batches)


def growth_of(levels: Sequence[int], per: str, least: int) -> Growth | None:
    """Return how much each epoch or call leaves behind; the first two are the warm-up.

    Args:
        levels: what was allocated at the end of each.
        per: what they are.
        least: growth of fewer bytes in all is none.
    """
    later = list(levels[1:])
    if len(later) < 3 or min(later) < 0:
        return None
    grown = later[-1] - later[0]
    if grown < max(1, least) or any(after <= before for before, after in pairwise(later)):
        return None
    return Growth(per, median(b - a for a, b in pairwise(later)), len(later))
