"""Orders in which operations may come that are ready at the same time, and what each peaks at."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

SEEDS = range(1, 32)
_USUAL, _UNUSUAL = 0.1, 1.0
"""How far off guesses of times are: sigma of the logarithm."""
_OVERLOOKED = 0.25
"""Which share of the kernels that take hardly any time, and run once a step, is never found to be
short in a process: of 38 that read variables twelve, eleven and four, after 400 steps in three."""
_MOST = 150_000
"""Operations of all runs together after which no other order is tried."""
_FEW, _ENOUGH, _ALIKE = 4, 30_000, 1.005
"""Where not all seeds can be tried, that is also so after so many orders, of so many operations
together, whose peaks are alike: the highest is at most so many times the lowest."""
_UNTRIED, _UNKNOWN = 0.02, 0.15
"""What orders that were not tried may peak at beyond those that were, as a share: of all seeds,
and where a run takes so long that a few must do."""
_RUNTIME = 16 << 10
"""Bytes that a step has besides: constants of the graph, the iterator, states of generators."""

BATCHES_AHEAD = 4
"""What Keras' adapter of arrays holds besides the batch of the step, as measured of ``fit``."""


class Meter:
    """Counts what a run takes, without keeping it."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._now = self.peak = 0
        self.operations = 0
        """Of the run."""

    def take(self, nbytes: int, place: Any, name: str | None = None) -> int:
        """Count it in."""
        self._sizes.append(nbytes)
        self._now += nbytes
        self.peak = max(self.peak, self._now)
        return len(self._sizes) - 1

    def bound(self, row: int, least: int, likely: int, most: int) -> None:
        """Bounds do not matter here."""

    def give(self, row: int, place: Any) -> None:
        """Count it out."""
        self._now -= self._sizes[row]

    def assign(self, variable: str, row: int, old: int, place: Any) -> None:
        """Which of them is a variable does not matter here."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a graph peaks at in several orders."""

    typical: int
    """Seed of the usual order whose peak is the median."""
    low: int
    """Bytes of the lowest peak, less what an order that was not tried may save."""
    high: int
    """Bytes of the highest, with what other orders and the runtime may add."""
    count: int
    """How many orders were run."""


def uneven(seed: int) -> Callable[[float], float]:
    """Return what makes guesses of times be off by chance, by little or by much.

    The median of a program's steps is that of steps without disturbances (measured, 60 steps each
    of a dozen graphs); what lies above and below it comes of threads that had to wait.

    Args:
        seed: the same one gives the same; 0: none is off.
    """
    if not seed:
        return float
    vary, sigma = random.Random(seed).lognormvariate, _USUAL if _is_usual(seed) else _UNUSUAL
    return lambda seconds: seconds * vary(0.0, sigma)


def overlooking(seed: int) -> Callable[[], bool]:
    """Return what tells of each kernel whether it is never found to be short.

    Caches are cold where a kernel runs once in a step, and one step with a long wait takes dozens
    of others to be outweighed.

    Args:
        seed: the same one gives the same; 0: none is overlooked.
    """
    if not seed:
        return lambda: False
    chance = random.Random(-seed)
    return lambda: chance.random() < _OVERLOOKED


def _is_usual(seed: int) -> bool:
    return seed % 3 != 0


def in_many_orders(peak_of: Callable[[int], Meter], *, by_time: bool) -> Orders:
    """Return what several orders peak at.

    Args:
        peak_of: runs the order of a seed.
        by_time: whether the order depends on times, as that of several threads does.
    """
    peaks: list[tuple[int, int]] = []
    operations = 0
    for seed in SEEDS:
        meter = peak_of(seed)
        peaks.append((meter.peak, seed))
        operations += meter.operations
        is_large = meter.operations * len(SEEDS) > _MOST
        enough = is_large and len(peaks) >= _FEW and _are_alike(peaks)
        if operations > (_ENOUGH if enough else _MOST):
            break
    peaks.sort()
    low, high = peaks[0][0], peaks[-1][0]
    untried = _UNTRIED if len(peaks) == len(SEEDS) else _UNKNOWN
    low, high = int(low * (1 - untried)), int(high * (1 + untried)) + _RUNTIME
    usual = [seed for _, seed in peaks if _is_usual(seed) or not by_time]
    return Orders(usual[len(usual) // 2], low, high, len(peaks))


def _are_alike(peaks: Sequence[tuple[int, int]]) -> bool:
    return max(peaks)[0] <= _ALIKE * min(peaks)[0]
