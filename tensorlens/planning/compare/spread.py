"""What repeats say of a ratio: how large it is, and whether it is any at all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""Two-sided 95 % points of Student's t with 1 to 20 degrees of freedom."""
_NORMAL = 1.96

LEAST = 0.01
"""A hundredth is no difference, however sure it is."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One time as a ratio to another."""

    point: float
    """The geometric mean of the repeats' ratios."""
    low: float | None
    """The 95 % interval of it; None with one repeat, which says nothing of noise."""
    high: float | None

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, ``no difference``, or ``unknown`` with one repeat."""
        if self.low is None or self.high is None:
            return "unknown"
        if self.high < 1 and self.point < 1 - LEAST:
            return "faster"
        if self.low > 1 and self.point > 1 + LEAST:
            return "slower"
        return "no difference"

    @property
    def noise(self) -> float | None:
        """Half of the interval, as a part of the ratio."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.point


def ratio(times: Sequence[float], base: Sequence[float]) -> Ratio | None:
    """Return the ratio of times to those of a base that were taken in turns with them.

    Each is divided by the one of its own turn, so that a slow spell of the machine touches both;
    the interval is Student's over the logarithms. None where there are none.
    """
    pairs = [(one, other) for one, other in zip(times, base, strict=False) if one > 0 < other]
    if not pairs:
        return None
    if times == base:
        return Ratio(1.0, 1.0, 1.0)
    logarithms = [math.log(one / other) for one, other in pairs]
    middle = statistics.fmean(logarithms)
    count = len(logarithms)
    if count < 2:
        return Ratio(math.exp(middle), None, None)
    point_t = _STUDENT[count - 2] if count - 2 < len(_STUDENT) else _NORMAL
    half = point_t * statistics.stdev(logarithms) / math.sqrt(count)
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def spread(times: Sequence[float]) -> float | None:
    """Return how far repeats lie apart, as a part of their median; None with fewer than two."""
    if len(times) < 2:
        return None
    return (max(times) - min(times)) / statistics.median(times)
