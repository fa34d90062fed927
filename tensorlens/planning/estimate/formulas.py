"""A curve through the peaks of a few runs, and whether to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorlens.units import format_bytes

_CLOSE = 0.003
"""A curve that misses a run by no more is sure: blocks and remainders are rounded."""
_NEAR = 0.02
"""A line that misses a run by no more is better than a parabola that nothing confirms."""
_SPREAD = 16
"""Three runs confirm a curve only where the largest value is at most so many times the least."""
_NEGLIGIBLE = 0.001
"""A term that makes up less of the largest peak is of rounding."""


@dataclass(frozen=True, slots=True)
class Formula:
    """``constant + linear * n + quadratic * n * n`` bytes."""

    constant: float
    linear: float = 0.0
    quadratic: float = 0.0
    is_sure: bool = True
    """Whether a run that was not needed to draw the curve is on it."""

    def at(self, value: int) -> float:
        """Return the bytes for a value."""
        return self.constant + value * (self.linear + value * self.quadratic)

    def misses(self, value: int, peak: int) -> float:
        """Return what the curve is off a run, as a share of its peak."""
        return abs(self.at(value) / peak - 1) if peak else 0.0

    def shown(self, name: str) -> str:
        """Return it as a person reads it: ``1.2 GiB + 310 MiB x batch``."""
        parts = [format_bytes(round(self.constant))]
        if self.linear:
            parts.append(f"{format_bytes(round(self.linear))} x {name}")
        if self.quadratic:
            # less than a byte a step is told for a thousand steps
            parts.append(
                f"{format_bytes(round(self.quadratic))} x {name}^2"
                if abs(self.quadratic) >= 1
                else f"{format_bytes(round(self.quadratic * 1_000_000))} x ({name} / 1000)^2"
            )
        return " + ".join(parts).replace("+ -", "- ")


def fitted(peaks: Mapping[int, int]) -> Formula:
    """Return the simplest curve that the runs with the largest values are on.

    That is a line through three, or a parabola that bends upwards through four. Failing that, what
    comes nearest and is not sure; a parabola that bends downwards never is more than a line through
    the last two: peaks are the highest of several sums, and such a curve only bends upwards.

    Args:
        peaks: at least three values of the argument to bytes.
    """
    runs = sorted(peaks.items())
    line, curve = _line(runs[-3], runs[-1]), _parabola(*runs[-3:])
    missed = line.misses(*runs[-2])
    is_narrow = runs[-1][0] <= _SPREAD * runs[-3][0]
    if missed <= _CLOSE and is_narrow:
        return _without_rounding(line, runs[-1])
    if curve.quadratic > 0 and len(runs) > 3 and is_narrow:
        # a curve that foretells the largest, which is much farther than the others are apart
        foretold = _parabola(*runs[-4:-1]).misses(*runs[-1])
        if foretold <= _NEAR and curve.misses(*runs[-4]) <= _CLOSE:
            return curve
    if missed <= _NEAR:
        return replace(_without_rounding(line, runs[-1]), is_sure=False)
    found = curve if curve.quadratic > 0 else _line(*runs[-2:])
    return replace(found, is_sure=False)


def _line(low: tuple[int, int], high: tuple[int, int]) -> Formula:
    linear = (high[1] - low[1]) / (high[0] - low[0])
    return Formula(high[1] - linear * high[0], linear)


def _parabola(low: tuple[int, int], middle: tuple[int, int], high: tuple[int, int]) -> Formula:
    first, second = _line(low, middle).linear, _line(middle, high).linear
    quadratic = (second - first) / (high[0] - low[0])
    linear = first - quadratic * (low[0] + middle[0])
    return Formula(low[1] - low[0] * (linear + quadratic * low[0]), linear, quadratic)


def _without_rounding(line: Formula, largest: tuple[int, int]) -> Formula:
    """Leave out what makes up too little of the largest peak, or would make it shrink."""
    value, peak = largest
    if line.linear * value < _NEGLIGIBLE * peak:
        return Formula(float(peak))
    return line
