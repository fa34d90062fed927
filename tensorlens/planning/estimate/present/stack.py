"""The memory of the card as a bar in stripes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tensorlens.planning.estimate.present.peak_parts import ON_THE_WAY, UNTOLD, WORKSPACE, Part
from tensorlens.planning.estimate.result import REMAINDER, Estimate, Fit
from tensorlens.render import blocks
from tensorlens.render.colours import ROLE_COLOURS
from tensorlens.render.figures import size

_COLOURS = {
    **ROLE_COLOURS,
    ON_THE_WAY: "#d3a4c4",
    WORKSPACE: "#a0522d",
    REMAINDER: "#a8a8a8",
    UNTOLD: "#8c8c8c",
}
_SMALL = 3
"""What is used is drawn once more where it is less than this part of the whole."""
_CACHED, _OUTSIDE, _FREE = "cached", "outside of {}", "free"


@dataclass(frozen=True, slots=True)
class Stripe:
    """A piece of the bar."""

    label: str
    nbytes: int
    colour: str
    """As CSS has it; empty for what has a pattern of its own."""
    kind: Literal["used", "cached", "free"] = "used"


@dataclass(frozen=True, slots=True)
class Bar:
    """The card's memory in stripes, whose widths are their shares of ``whole``."""

    stripes: tuple[Stripe, ...]
    whole: int
    limit: int | None
    """Where the capacity ends, if the stripes go beyond it."""

    @property
    def zoomed(self) -> Bar | None:
        """What is used alone, where that is too little of the whole to be seen; else None."""
        used = tuple(stripe for stripe in self.stripes if stripe.kind != "free")
        nbytes = sum(stripe.nbytes for stripe in used)
        return Bar(used, nbytes, None) if 0 < nbytes * _SMALL < self.whole else None


def colour(kind: str) -> str:
    """Return the colour of a part of the peak."""
    return _COLOURS.get(kind, _COLOURS["other"])


def stacks(bar: Bar, label: str) -> Iterator[blocks.Stack]:
    """Give the bar as it is shown, and what is used of it where that is too little to be seen."""
    if bar.stripes:
        yield _stack(bar, label)
    if bar.zoomed is not None:
        yield _stack(bar.zoomed, "what is used of it")


def card_bar(estimate: Estimate, parts: Mapping[str, Part], fit: Fit | None) -> Bar:
    """Return the memory of the card when most is allocated, what is cached and what is free.

    What is cached is what the peak of reserved memory has beyond it, or as much of it as the
    capacity leaves; it goes back when it must.
    """
    stripes = [
        Stripe(part.label, part.nbytes, colour(part.kind))
        for part in parts.values()
        if part.nbytes > 0
    ]
    outside = estimate.apart.point
    reserved = estimate.peak_reserved
    if fit is not None:
        left = fit.capacity - outside
        reserved = max(min(reserved, left), estimate.least_capacity.point)
    cached = max(reserved - estimate.peak_allocated, 0)
    stripes.append(Stripe(_CACHED, cached, "", "cached"))
    stripes.append(Stripe(_OUTSIDE.format(estimate.framework), outside, "#5b6470"))
    used = sum(stripe.nbytes for stripe in stripes)
    capacity = used if fit is None else fit.capacity
    stripes.append(Stripe(_FREE, max(capacity - used, 0), "", "free"))
    shown = tuple(stripe for stripe in stripes if stripe.nbytes)
    return Bar(shown, max(used, capacity), capacity if used > capacity else None)


def _stack(bar: Bar, label: str) -> blocks.Stack:
    return blocks.Stack(
        label,
        tuple(
            blocks.Stripe(
                each.label, size(each.nbytes), each.nbytes / bar.whole, each.colour, each.kind
            )
            for each in bar.stripes
        ),
        None if bar.limit is None else (bar.limit / bar.whole, size(bar.limit)),
    )
