"""Figures of an estimate: required on card, what tools will show, the sum of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tensorlens.planning.estimate.peak_parts import PeakPart
from tensorlens.planning.estimate.result import Estimate, Range
from tensorlens.render.source import printable

Sign = Literal["", "+", "-", "="]
"""Of a row in a sum: empty for the first, ``=`` for the sum so far."""

_CALLS = {
    "torch": ("torch.cuda.max_memory_allocated()", "torch.cuda.max_memory_reserved()"),
    "tensorflow": ("get_memory_info('GPU:0')['peak']", "regions of the BFC allocator"),
}
"""Framework to what tells the two peaks of a real run."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the figures that a person asks for."""

    label: str
    nbytes: Range
    meaning: str
    """A few words, for where there is room."""
    sign: Sign = ""


@dataclass(frozen=True, slots=True)
class SumRow:
    """One line of a sum that can be checked by hand."""

    sign: Sign
    label: str
    nbytes: int


def requirement(estimate: Estimate) -> tuple[Figure, ...]:
    """Return what decides whether it fits, as a sum: each of its bounds adds up as well."""
    if estimate.card is None:
        return ()
    outside = f"outside of {estimate.framework}"
    found = (
        Figure("minimum that fits", estimate.least_capacity, "reserved, without unused cache"),
        Figure(outside, estimate.apart, "CUDA context, loaded kernels", "+"),
        Figure("required on card", estimate.needed, "decides whether it fits", "="),
    )
    return tuple(map(_without_bounds, found)) if estimate.unsimulated else found


def tool_figures(estimate: Estimate) -> tuple[Figure, ...]:
    """Return what tools will show of a run: the framework's two peaks, and the driver's figure."""
    if estimate.card is None:
        found = Figure("peak allocated", estimate.allocated, "in tensors and in kernels")
        return (_without_bounds(found) if estimate.unsimulated else found,)
    allocated, reserved = _CALLS.get(estimate.framework, _CALLS["torch"])
    figures = (
        Figure("peak allocated", estimate.allocated, allocated),
        Figure("peak reserved", estimate.reserved, reserved),
        Figure("allocator total", estimate.taken, "reserved + kernels: nvidia-smi less context"),
    )
    return tuple(map(_without_bounds, figures))


def _without_bounds(figure: Figure) -> Figure:
    return replace(figure, nbytes=Range.exactly(figure.nbytes.point))


def sum_rows(estimate: Estimate, parts: Mapping[str, PeakPart]) -> Iterator[SumRow]:
    """Give the sum from the parts of the peak up to required on card.

    It adds up to the byte: to the peaks of what is allocated and reserved, to the least capacity,
    and with the terms outside of the framework to what is needed.
    """
    for number, part in enumerate(parts.values()):
        yield _signed(part.nbytes, part.label, first=not number)
    yield SumRow("=", "allocated at the peak", estimate.peak_allocated)
    if estimate.card is None and not estimate.apart.high:
        return
    cached = estimate.peak_reserved - estimate.peak_allocated
    if cached:
        yield _signed(cached, "held in segments beyond that")
    yield SumRow("=", "reserved at the peak", estimate.peak_reserved)
    given_back = estimate.least_capacity.point - estimate.peak_reserved
    if given_back:
        label = "cached, returned when needed" if given_back < 0 else "up to whole segments"
        yield _signed(given_back, label)
        yield SumRow("=", "minimum that fits", estimate.least_capacity.point)
    for term in estimate.terms:
        if term.apart and term.nbytes.high:
            yield _signed(term.nbytes.point, printable(term.name))
    yield SumRow("=", "required on card", estimate.needed.point)


def _signed(nbytes: int, label: str, *, first: bool = False) -> SumRow:
    return SumRow("-" if nbytes < 0 else "" if first else "+", label, abs(nbytes))
