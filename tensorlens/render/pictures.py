"""Pictures on pages, a timeline and a treemap, with their colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

ROLE_COLOURS = {
    "parameter": "#4e79c5",
    "buffer": "#7fa7c9",
    "gradient": "#b07aa1",
    "optimizer": "#3d9970",
    "activation": "#de8b2c",
    "input": "#c9b458",
    "other": "#8c8c8c",
    "temporary": "#c56a5c",
    # parts of an estimate's peak
    "gradient of activations": "#d3a4c4",
    "workspace": "#a0522d",
    "remainder": "#a8a8a8",
}

STACKED = (
    *("parameter", "buffer", "optimizer", "gradient"),
    *("activation", "input", "other", "temporary"),
)
"""The roles in the order that a timeline stacks them: lasting memory at the bottom."""

# differ from the colours of roles: one legend has both
PHASE_COLOURS = {
    "forward": "#2fa8b8",
    "backward": "#7d5bd0",
    "optimizer": "#8a5a2b",
    "other": "none",
}


def role_colour(role: str) -> str:
    """Return the colour of a role; that of ``other`` if the role is unknown."""
    return ROLE_COLOURS.get(role, ROLE_COLOURS["other"])


WIDTH, HEIGHT = 100_000, 1000
"""Units of the timeline, which a page stretches to its width."""


@dataclass(frozen=True, slots=True)
class Area:
    """One role's bytes on top of those of the roles before it."""

    role: str
    colour: str
    path: str
    """SVG path from the bottom up to the sum; earlier roles are drawn over it."""


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a place of the picture, in percent of its width or height."""

    text: str
    at: str


@dataclass(frozen=True, slots=True)
class Band:
    """A phase below the picture: its start and width, in the picture's units."""

    phase: str
    colour: str
    x: int
    width: int


@dataclass(frozen=True, slots=True)
class Picture:
    """Bytes over time, stacked by role; pages draw it, text leaves it out."""

    width: ClassVar[int] = WIDTH
    height: ClassVar[int] = HEIGHT

    label: str
    """Description in words."""
    areas: tuple[Area, ...]
    reserved: str
    """SVG path of the reserved bytes; empty if unknown."""
    grid: tuple[Label, ...]
    ticks: tuple[Label, ...]
    marks: tuple[int, ...]
    """Positions of the marks, in the picture's units; none if they are too many."""
    mark_labels: tuple[Label, ...]
    bands: tuple[Band, ...]
    peak_x: str
    peak_y: str
    dropped: str
    """Note on dropped events before the picture; empty if there are none."""
    dropped_peak: Label | None
    """Peak of the dropped events, if it is higher than the picture's."""
    begin: int
    """Nanoseconds or number of the event at the left edge, see ``by_time``."""
    span: int
    """Nanoseconds or events from the left edge to the right one."""
    xs: tuple[int, ...]
    """Position of each point of the timeline, in the picture's units."""
    by_time: bool
    """Whether the axis is time; else it is the number of the event."""
    is_live: bool = False
    """Whether a script lets the reader choose an instant."""

    @property
    def phases(self) -> dict[str, str]:
        """The phases that occur, and their colours."""
        shown = {band.phase for band in self.bands}
        return {phase: colour for phase, colour in PHASE_COLOURS.items() if phase in shown}


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of a treemap, as large as its bytes."""

    label: str
    text: str
    nbytes: int
    swatch: str
    """Its CSS colour."""
    tip: str = ""
    boxes: tuple[Box, ...] = ()
    """Its parts; they add up to it."""


@dataclass(frozen=True, slots=True)
class Treemap:
    """Groups of boxes that fill a rectangle; pages draw it, text leaves it out."""

    label: str
    """Description in words."""
    groups: tuple[Box, ...]


TREEMAP_WIDTH, TREEMAP_HEIGHT = 1200.0, 340.0
"""Size of the treemap in pixels, for its layout; a page stretches its width."""
_TITLE_HEIGHT = 18.0
_GAP = 1.0
_LABEL_SIZE = (34.0, 15.0)
"""Least width and height of a box with a label."""
_TWO_LINES = 30.0
"""Least height of a box with a second line."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A box and its position: across in percent, down in pixels."""

    box: Box
    x: float
    y: float
    width: float
    height: float
    is_group: bool
    has_label: bool
    has_text: bool


def rectangles(treemap: Treemap) -> list[Rectangle]:
    """Return the groups of a treemap and the boxes in them, each group before its boxes."""
    drawn = []
    for group, area in _divided(treemap.groups, (0.0, 0.0, TREEMAP_WIDTH, TREEMAP_HEIGHT)):
        drawn.append(_rectangle(group, area, is_group=True))
        x, y, width, height = area
        title = min(_TITLE_HEIGHT, height / 2)
        inside = (x, y + title, width, max(height - title, 0.0))
        drawn += [_rectangle(box, part) for box, part in _divided(group.boxes, inside)]
    return drawn


_Area = tuple[float, float, float, float]


def _rectangle(box: Box, area: _Area, *, is_group: bool = False) -> Rectangle:
    x, y, width, height = area
    width, height = max(width - _GAP, 0.0), max(height - _GAP, 0.0)
    return Rectangle(
        box,
        100 * x / TREEMAP_WIDTH,
        y,
        100 * width / TREEMAP_WIDTH,
        height,
        is_group,
        has_label=width >= _LABEL_SIZE[0] and height >= _LABEL_SIZE[1],
        has_text=is_group or height >= _TWO_LINES,
    )


def _divided(boxes: Sequence[Box], area: _Area) -> Iterator[tuple[Box, _Area]]:
    """Yield each box with its rectangle within an area, the largest first.

    The area is cut across its longer side into two parts as equal as the sizes allow, and so on.
    """
    left = sorted((box for box in boxes if box.nbytes > 0), key=lambda box: -box.nbytes)
    if len(left) < 2:
        yield from ((box, area) for box in left)
        return
    sums = [*accumulate(box.nbytes for box in left)]
    cut = min(range(1, len(left)), key=lambda index: abs(2 * sums[index - 1] - sums[-1]))
    part = sums[cut - 1] / sums[-1]
    x, y, width, height = area
    if width >= height:
        wide = width * part
        first, second = (x, y, wide, height), (x + wide, y, width - wide, height)
    else:
        high = height * part
        first, second = (x, y, width, high), (x, y + high, width, height - high)
    yield from _divided(left[:cut], first)
    yield from _divided(left[cut:], second)
