"""The memory of a card as a bar: the parts of the peak, the cache, and what is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from tensorlens.planning.estimate.peak_parts import (
    ACTIVATION_GRADIENT,
    UNATTRIBUTED,
    WORKSPACE,
    PeakPart,
)
from tensorlens.planning.estimate.result import REMAINDER, Estimate, Fit
from tensorlens.render import blocks
from tensorlens.render.colours import ROLE_COLOURS
from tensorlens.render.figures import size

_COLOURS = {
    **ROLE_COLOURS,
    ACTIVATION_GRADIENT: "#d3a4c4",
    WORKSPACE: "#a0522d",
    REMAINDER: "#a8a8a8",
    UNATTRIBUTED: "#8c8c8c",
}
_SMALL = 3
"""The needed part has a bar of its own where the whole is more than so many times as large."""
_USED, _OUTSIDE = "#7a6fae", "#5b6470"


def colour(kind: str) -> str:
    """Return the colour of a part of the peak."""
    return _COLOURS.get(kind, _COLOURS["other"])


class _Piece(NamedTuple):
    label: str
    nbytes: int
    colour: str = ""
    """As CSS has it; empty for what has a pattern of its own."""
    kind: Literal["used", "cached", "free"] = "used"


def card_stacks(
    estimate: Estimate, parts: Mapping[str, PeakPart], fit: Fit | None, label: str
) -> Iterator[blocks.Stack]:
    """Give the memory of the card when most is allocated: what is needed, and what is free.

    Cache that goes back when it must is free. Where the needed part is small, it has a bar of its
    own.
    """
    pieces = [_Piece(part.label, part.nbytes, colour(part.kind)) for part in parts.values()]
    pieces += [
        _Piece(
            "unused in segments",
            estimate.least_capacity.point - estimate.peak_allocated,
            "",
            "cached",
        ),
        _Piece(f"outside of {estimate.framework}", estimate.apart.point, _OUTSIDE),
    ]
    pieces = [piece for piece in pieces if piece.nbytes > 0]
    used = sum(piece.nbytes for piece in pieces)
    capacity = used if fit is None else fit.capacity
    whole = max(used, capacity)
    free = (_Piece("free", whole - used, "", "free"),) if used < whole else ()
    if 0 < used * _SMALL < whole:
        yield _stack(label, (_Piece("needed", used, _USED), *free), whole, None)
        yield _stack("the needed part", pieces, used, None)
    elif pieces or free:
        yield _stack(label, (*pieces, *free), whole, capacity if used > capacity else None)


def _stack(label: str, pieces: Sequence[_Piece], whole: int, limit: int | None) -> blocks.Stack:
    stripes = (
        blocks.Stripe(each.label, size(each.nbytes), each.nbytes / whole, each.colour, each.kind)
        for each in pieces
    )
    end = None if limit is None else (limit / whole, size(limit))
    return blocks.Stack(label, tuple(stripes), end)
