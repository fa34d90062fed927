"""``scaling()``: how the peak grows with the batch or the sequence, as a formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.estimating.asking import question
from tensorlens.estimating.programs import MakeStep
from tensorlens.estimating.worker import Worker
from tensorlens.records.cards import Card
from tensorlens.records.estimates import Estimate
from tensorlens.units import format_bytes

_NEGLIGIBLE = 0.02
"""A term that makes up less of the largest peak comes from where the peak lies, and rounding."""


@dataclass(frozen=True)
class Scaling:
    """The peak of what is allocated as a function of one argument, fitted from three runs.

    It is ``constant + linear * n + quadratic * n * n`` bytes.
    """

    argument: str
    constant: float
    linear: float
    quadratic: float
    estimates: Mapping[int, Estimate]
    """The runs by the argument's value."""

    def at(self, value: int) -> int:
        """Return the peak of what is allocated for a value of the argument, in bytes."""
        return round(self.constant + value * (self.linear + value * self.quadratic))

    @property
    def formula(self) -> str:
        """The function as a person reads it: ``1.2 GiB + 310 MiB x batch``."""
        parts = [format_bytes(round(self.constant))]
        if self.linear:
            parts.append(f"{format_bytes(round(self.linear))} x {self.argument}")
        if self.quadratic:
            # less than a byte a step is told for a thousand steps
            parts.append(
                f"{format_bytes(round(self.quadratic))} x {self.argument}^2"
                if abs(self.quadratic) >= 1
                else f"{format_bytes(round(self.quadratic * 1_000_000))} x"
                f" ({self.argument} / 1000)^2"
            )
        return " + ".join(parts).replace("+ -", "- ")

    def __str__(self) -> str:
        rows = (
            f"  {self.argument} = {value}: {format_bytes(each.peak_allocated)} allocated,"
            f" {format_bytes(each.peak_reserved)} reserved"
            for value, each in self.estimates.items()
        )
        return "\n".join((f"peak allocated = {self.formula}", "from three runs:", *rows))


def scaling(
    make_step: MakeStep,
    argument: str = "batch",
    values: Sequence[int] = (8, 16, 24),
    *,
    card: str | Card | None = None,
    steps: int = 2,
    settings: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    world_size: int = 1,
) -> Scaling:
    """Return how the peak grows with a keyword argument of ``make_step``.

    Args:
        make_step: as for :func:`tensorlens.estimate`; it takes ``argument``.
        argument: its name: ``batch``, ``sequence``.
        values: three values of it.
        card: the card's name.
        steps: how many are run for each value.
        settings: what ``PYTORCH_CUDA_ALLOC_CONF`` will be; by default what it is now.
        arguments: further keyword arguments.
        world_size: how many processes train together.

    Raises:
        UsageError: something of it makes no sense; one line says what.
        ProgramFailed: the program raised an error.
    """
    points = sorted(set(values))
    if len(points) != 3:
        raise UsageError(f"values={tuple(values)}: a formula is fitted from three different values")
    found: dict[int, Estimate] = {}
    with Worker() as worker:
        for value in points:
            asked = question(
                make_step,
                card=card,
                steps=steps,
                settings=settings,
                arguments={**(arguments or {}), argument: value},
                world_size=world_size,
            )
            found[value] = asked.ask(worker)
    peaks = [found[value].peak_allocated for value in points]
    return Scaling(argument, *_fitted(points, peaks), found)


def _fitted(points: Sequence[int], peaks: Sequence[int]) -> tuple[float, float, float]:
    """Return the parabola through three points, or a line where that is all it is."""
    (a, b, c), (low, middle, high) = points, peaks
    first, second = (middle - low) / (b - a), (high - middle) / (c - b)
    quadratic = (second - first) / (c - a)
    if abs(quadratic) * c * c < _NEGLIGIBLE * high:
        linear = (high - low) / (c - a)
        return high - linear * c, linear, 0.0
    linear = first - quadratic * (a + b)
    return low - a * (linear + quadratic * a), linear, quadratic
