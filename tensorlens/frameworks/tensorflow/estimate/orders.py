"""Orders in which operations may come that are ready at the same time, and what each peaks at."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tensorlens.frameworks.tensorflow.estimate.costs import seconds
from tensorlens.frameworks.tensorflow.estimate.held import Value
from tensorlens.frameworks.tensorflow.estimate.nodes import Node

SEEDS = (0, 1, 2, 3, 4)
_SPREAD = 1.0
_MOST = 3000
"""Requests of a run above which one order has to do."""

CostOf = Callable[[Node, Sequence[Value]], float]


class Meter:
    """Counts what a run takes, without keeping it."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._now = self.peak = 0

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

    @property
    def is_long(self) -> bool:
        """Whether another run would take too long."""
        return len(self._sizes) > _MOST


def uneven(seed: int) -> CostOf:
    """Return guesses that are off by chance, as times on a real machine are.

    Args:
        seed: the same one gives the same guesses; 0: none is off.
    """
    if not seed:
        return seconds
    chance = random.Random(seed)

    def cost(node: Node, values: Sequence[Value]) -> float:
        return seconds(node, values) * chance.lognormvariate(0.0, _SPREAD)

    return cost


def spread(peak_of: Callable[[int], Meter]) -> tuple[int, int]:
    """Return the least and the most that several orders peak at.

    Args:
        peak_of: runs the order of a seed.
    """
    peaks = []
    for seed in SEEDS:
        meter = peak_of(seed)
        peaks.append(meter.peak)
        if meter.is_long:
            break
    return min(peaks), max(peaks)
