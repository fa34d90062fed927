"""``scaling()``: the growth of the peak with the batch or the sequence, as a formula."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.guards import first_line
from tensorlens.planning.card import Card
from tensorlens.planning.estimate.api import ProgramOptions, request
from tensorlens.planning.estimate.figures import resident_changes
from tensorlens.planning.estimate.result import Estimate
from tensorlens.planning.estimate.target import MakeStep
from tensorlens.planning.processes import Runner
from tensorlens.units import format_bytes

_MAX_ERROR = 0.003
"""Largest relative error of a confirmed curve; blocks are rounded."""
_MAX_LINE_ERROR = 0.02
"""Largest relative error of a line that is preferred to an unconfirmed parabola, and of a parabola
at the largest run if it is fitted to the others."""
_MAX_SPREAD = 16
"""Largest ratio of the largest to the least value of three runs that confirm a curve."""
_MIN_TERM = 0.001
"""Fraction of the largest peak below which a term counts as rounding."""


@dataclass(frozen=True, slots=True)
class Curve:
    """``constant + linear * n + quadratic * n * n`` bytes."""

    constant: float
    linear: float = 0.0
    quadratic: float = 0.0
    is_sure: bool = True
    """Whether a run beyond those that define the curve lies on it."""

    def at(self, value: int) -> float:
        """Return the bytes at a value."""
        return self.constant + value * (self.linear + value * self.quadratic)

    def misses(self, value: int, peak: int) -> float:
        """Return the error of the curve at a run, relative to its peak."""
        return abs(self.at(value) / peak - 1) if peak else 0.0

    def shown(self, name: str) -> str:
        """Return the formula for people: ``1.2 GiB + 310 MiB x batch``."""
        parts = [format_bytes(round(self.constant))]
        if self.linear:
            parts.append(f"{format_bytes(round(self.linear))} x {name}")
        if self.quadratic:
            # a factor below one byte is shown for a thousand
            parts.append(
                f"{format_bytes(round(self.quadratic))} x {name}^2"
                if abs(self.quadratic) >= 1
                else f"{format_bytes(round(self.quadratic * 1_000_000))} x ({name} / 1000)^2"
            )
        return " + ".join(parts).replace("+ -", "- ")


def fit_curve(peaks: Mapping[int, int]) -> Curve:
    """Return the simplest curve through the runs with the largest values.

    It is a line through three runs, or an upward parabola through four; otherwise the nearest
    curve, which is not sure. A peak is the highest of several sums, so it cannot bend downwards: a
    downward parabola is replaced by the line through the last two runs.
    """
    runs = sorted(peaks.items())
    line, curve = _line(runs[-3], runs[-1]), _parabola(*runs[-3:])
    missed = line.misses(*runs[-2])
    is_narrow = runs[-1][0] <= _MAX_SPREAD * runs[-3][0]
    if missed <= _MAX_ERROR and is_narrow:
        return _without_rounding(line, runs[-1])
    if curve.quadratic > 0 and len(runs) > 3 and is_narrow:
        # the other runs must predict the largest, which is much farther away
        error = _parabola(*runs[-4:-1]).misses(*runs[-1])
        if error <= _MAX_LINE_ERROR and curve.misses(*runs[-4]) <= _MAX_ERROR:
            return curve
    if missed <= _MAX_LINE_ERROR:
        return replace(_without_rounding(line, runs[-1]), is_sure=False)
    found = curve if curve.quadratic > 0 else _line(*runs[-2:])
    return replace(found, is_sure=False)


def _line(low: tuple[int, int], high: tuple[int, int]) -> Curve:
    linear = (high[1] - low[1]) / (high[0] - low[0])
    return Curve(high[1] - linear * high[0], linear)


def _parabola(low: tuple[int, int], middle: tuple[int, int], high: tuple[int, int]) -> Curve:
    first, second = _line(low, middle).linear, _line(middle, high).linear
    quadratic = (second - first) / (high[0] - low[0])
    linear = first - quadratic * (low[0] + middle[0])
    return Curve(low[1] - low[0] * (linear + quadratic * low[0]), linear, quadratic)


def _without_rounding(line: Curve, largest: tuple[int, int]) -> Curve:
    """Return the largest run's peak as a constant if the line rises negligibly to it, or falls."""
    value, peak = largest
    if line.linear * value < _MIN_TERM * peak:
        return Curve(float(peak))
    return line


SETUP = "setup, where model and data are made"
PASS, OPTIMIZER = "forward and backward", "the optimizer's step"
"""Parts of a run whose peaks are fitted separately."""

_MAX_FURTHER_RUNS = 6
"""Largest number of additional runs."""
_MAX_VALUE = 1 << 20
"""Largest value of an additional run."""
_FAR_END = 1 << 48
_MAX_RATIO = 8
"""Largest ratio of an additional value to the largest one so far."""


@dataclass(frozen=True)
class Scaling:
    """The allocated peak as a function of one argument, fitted to a few runs.

    It is the maximum of its pieces, each the peak of one part of the run.
    """

    argument: str
    pieces: Mapping[str, Curve]
    """The part of the run, :data:`SETUP`, :data:`PASS` or :data:`OPTIMIZER`, to its peak."""
    estimates: Mapping[int, Estimate]
    """Value of the argument to the estimate of its run."""
    ended: str = ""
    """Why a wanted further run is missing; empty if none is."""

    def at(self, value: int) -> int:
        """Return the allocated peak for a value of the argument, in bytes."""
        return round(max(piece.at(value) for piece in self.pieces.values()))

    @property
    def place(self) -> str:
        """The part of the run that is the peak for large values."""
        return max(self.pieces, key=lambda place: self.pieces[place].at(_FAR_END))

    @property
    def begins(self) -> int:
        """The value from which :attr:`place` is the peak."""
        last = self.pieces[self.place]
        others = [piece for piece in self.pieces.values() if piece is not last]
        return 1 + bisect_left(
            range(1, _FAR_END),
            True,
            key=lambda value: all(last.at(value) >= other.at(value) for other in others),
        )

    @property
    def formula(self) -> str:
        """The formula from :attr:`begins` on, for people: ``1.2 GiB + 310 MiB x batch``."""
        return self.pieces[self.place].shown(self.argument)

    @property
    def residuals(self) -> Mapping[int, float]:
        """Relative error of the formula at each run."""
        return {
            value: self.at(value) / each.peak_allocated - 1
            for value, each in self.estimates.items()
            if each.peak_allocated
        }

    def __str__(self) -> str:
        begins, name = self.begins, self.argument
        where = f", from {name} = {begins:,} on" if begins > 1 else ""
        lines = [f"peak allocated = {self.formula}{where}", f"  in {self.place}"]
        if begins > 1:
            place = max(self.pieces, key=lambda each: self.pieces[each].at(begins - 1))
            low, high = self.pieces[place].at(1), self.pieces[place].at(begins - 1)
            figures = dict.fromkeys(format_bytes(round(each)) for each in (low, high))
            lines.append(f"  below it in {place}: {' to '.join(figures)}")
        worst = max(map(abs, self.residuals.values()), default=0.0)
        off = f"off by {worst:.1%} at most" if worst >= 0.0005 else "which it meets"
        lines.append(f"from {len(self.estimates)} runs, {off}:")
        lines += (
            f"  {name} = {value}: {format_bytes(each.peak_allocated)} allocated,"
            f" {format_bytes(each.peak_reserved)} reserved"
            for value, each in self.estimates.items()
        )
        if begins > max(self.estimates):
            lines.append("  no run is so large that the formula is its peak: it is a guess")
        if not self.pieces[self.place].is_sure:
            lines.append(
                "  no further run confirms it: take it for values near the largest of them"
            )
        lines += [f"  {self.ended}"] if self.ended else []
        return "\n".join(lines)


def scaling(
    make_step: MakeStep | Any,
    argument: str = "batch",
    values: Sequence[int] = (8, 32, 128),
    *,
    card: str | Card | None = None,
    **options: Unpack[ProgramOptions],
) -> Scaling:
    """Return the growth of the peak with a keyword argument of ``make_step``.

    The peaks of the setup, of forward and backward, and of the optimizer's step are each fitted;
    the highest counts. If three runs cannot decide, at most six with larger values are added.

    Args:
        make_step: as for :func:`tensorlens.estimate`; it takes ``argument``. Of a
            Keras model the batch varies.
        argument: name of the argument: ``batch``, ``sequence``.
        values: three values of it, at least 1.
        card: name of the card.
        options: as for :func:`tensorlens.estimate`.

    Raises:
        UsageError: an argument makes no sense; one line says why.
        ProgramFailed: the program raised an error for one of the values.
    """
    try:
        points = sorted({operator.index(value) for value in values})
    except TypeError:
        raise UsageError(f"values={values!r}: give three whole numbers") from None
    if len(points) != 3:
        raise UsageError(f"values={tuple(values)}: a formula is fitted from three different values")
    if points[0] < 1:
        raise UsageError(f"values={tuple(values)}: {argument} is at least 1")

    asked = request(make_step, card=card, **options)

    def run(value: int) -> Estimate:
        return asked.with_argument(value, argument).run(runner)

    with Runner() as runner:
        return _confirmed(argument, {value: run(value) for value in points}, run)


def _confirmed(argument: str, runs: dict[int, Estimate], run: Callable[[int], Estimate]) -> Scaling:
    """Fit the runs, adding runs until none is wanted."""
    scaled = _scaled(argument, runs)
    for _ in range(_MAX_FURTHER_RUNS):
        wanted = _wanted(scaled)
        if wanted is None:
            break
        try:
            runs[wanted] = run(wanted)
        except TensorlensError as error:
            return replace(scaled, ended=f"no run with {argument} = {wanted}: {first_line(error)}")
        scaled = _scaled(argument, runs)
    return scaled


def _scaled(argument: str, runs: Mapping[int, Estimate]) -> Scaling:
    peaks = {value: peaks_by_place(each) for value, each in runs.items()}
    pieces = {
        place: fit_curve({value: parts[place] for value, parts in peaks.items()})
        for place in (SETUP, PASS, OPTIMIZER)
        if all(place in parts for parts in peaks.values())
    }
    return Scaling(argument, pieces, dict(sorted(runs.items())))


def _wanted(scaled: Scaling) -> int | None:
    """Return a larger value for a further run, or None.

    A run is wanted if the formula begins beyond the runs, if no run confirms it, or if the growing
    part is less than half of the largest peak: another moment may outgrow it.
    """
    largest = max(scaled.estimates)
    piece = scaled.pieces.get(PASS, scaled.pieces[scaled.place])
    grown = piece.at(largest) - piece.constant
    if scaled.begins > largest:
        wanted = min(2 * scaled.begins, _MAX_RATIO * largest)
    elif 2 * grown < piece.at(largest):
        half = int(piece.constant / piece.linear) if piece.linear > 0 else 0
        wanted = min(half, _MAX_RATIO * largest) if half > largest else _MAX_RATIO * largest
        wanted = 1 << (wanted - 1).bit_length()
    elif not piece.is_sure:
        wanted = 2 * largest
    else:
        return None
    return wanted if wanted <= _MAX_VALUE else None


def peaks_by_place(estimate: Estimate) -> Mapping[str, int]:
    """Return the allocated peak of each part of the run, remainders included."""
    first = min((mark.row for mark in estimate.recording.marks), default=0)
    held, found = 0, dict[str, int]()
    for row, block, nbytes in resident_changes(estimate):
        held += nbytes
        if row == block.row:
            place = SETUP if row < first else OPTIMIZER if block.phase == "optimizer" else PASS
            found[place] = max(found.get(place, 0), held)
    return found
