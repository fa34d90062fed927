"""Series of levels as few enough of them to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence


def thinned(series: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` levels, the first and the last among them."""
    if len(series) <= most:
        return [*series]
    last = len(series) - 1
    return [series[round(at * last / (most - 1))] for at in range(most)]


def heights(series: Sequence[int]) -> list[float]:
    """Return levels from 0 to 1, from the lowest to the highest; all alike are 0."""
    low, high = min(series), max(series)
    return [(each - low) / (high - low) if high > low else 0.0 for each in series]


def bars(series: Sequence[int], marks: str) -> str:
    """Return a line of marks, a mark for each level: the lowest the first, the highest the last."""
    last = len(marks) - 1
    return "".join(marks[math.floor(height * last + 0.5)] for height in heights(series))
