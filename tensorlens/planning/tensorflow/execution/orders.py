"""Peaks of one step in several orders of its operations, and what lies between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorlens.planning.tensorflow.execution.executor import Order

_BELOW, _ABOVE, _ABOVE_IN_LOOPS = 0.95, 1.2, 1.5
"""How far single steps were from the orders' peaks, as shares of the lowest and of the highest:
twenty steps each of eight networks with two optimizers, in three processes or eleven.
"""
_RUNTIME = 16 << 10
"""Bytes that a step has besides: constants of the graph, the iterator, states of generators."""

BATCHES_AHEAD = 4
"""Batches that Keras' adapter of arrays holds besides the step's, as measured of ``fit``."""


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

    def assign(self, variable: str, row: int, old: int, place: Any) -> None:
        """Which of them is a variable does not matter here."""


def likeliest(peaks: Mapping[Order, int], *, has_loops: bool) -> Order:
    """Return the order nearest to measured steps: in loops that with the higher peak.

    Without loops it is the first ready first (measured of the networks of docs/estimate.md).
    """
    return max(peaks, key=lambda order: peaks[order]) if has_loops else Order.FIRST_READY


def spread(peaks: Mapping[Order, int], *, has_loops: bool) -> tuple[int, int]:
    """Return the least and the most bytes that a step may peak at, by the peaks of orders."""
    above = _ABOVE_IN_LOOPS if has_loops else _ABOVE
    return int(min(peaks.values()) * _BELOW), int(max(peaks.values()) * above) + _RUNTIME
