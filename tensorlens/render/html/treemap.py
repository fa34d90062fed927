"""A treemap as nested SVG: every rectangle as large as its bytes, as near to a square as may be.

The layout is the squarified one of Bruls, Huizing and van Wijk, "Squarified Treemaps" (2000).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorlens.render.blocks import Box, Treemap

WIDTH, HEIGHT = 1200.0, 340.0
"""The picture's size in pixels as it is laid out; a page stretches its width."""
_TITLE = 18.0
_GAP = 1.0
_LABEL = (34.0, 15.0)
"""Width and height from which on a box has room for its label."""
_SECOND_LINE = 30.0


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A box where it is drawn; lengths across are in percent, those down in pixels."""

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
    found = []
    for group, area in _squarified(treemap.groups, (0.0, 0.0, WIDTH, HEIGHT)):
        found.append(_rectangle(group, area, is_group=True))
        x, y, width, height = area
        title = min(_TITLE, height / 2)
        inside = (x, y + title, width, max(height - title, 0.0))
        found += [_rectangle(box, place) for box, place in _squarified(group.boxes, inside)]
    return found


_Area = tuple[float, float, float, float]


def _rectangle(box: Box, area: _Area, *, is_group: bool = False) -> Rectangle:
    x, y, width, height = area
    width, height = max(width - _GAP, 0.0), max(height - _GAP, 0.0)
    return Rectangle(
        box,
        100 * x / WIDTH,
        y,
        100 * width / WIDTH,
        height,
        is_group,
        has_label=width >= _LABEL[0] and height >= _LABEL[1],
        has_text=is_group or height >= _SECOND_LINE,
    )


def _squarified(boxes: Sequence[Box], area: _Area) -> Iterator[tuple[Box, _Area]]:
    """Give each box its rectangle within an area, the largest first."""
    x, y, width, height = area
    left = sorted((box for box in boxes if box.nbytes > 0), key=lambda box: -box.nbytes)
    whole = sum(box.nbytes for box in left)
    while left and width > 0 and height > 0:
        scale = width * height / whole
        side = min(width, height)
        row = _row([box.nbytes * scale for box in left], side)
        thick = sum(box.nbytes for box in left[:row]) * scale / side
        along = 0.0
        for box in left[:row]:
            length = box.nbytes * scale / thick
            yield (
                box,
                (
                    (x, y + along, thick, length)
                    if width >= height
                    else (x + along, y, length, thick)
                ),
            )
            along += length
        whole -= sum(box.nbytes for box in left[:row])
        left = left[row:]
        if width >= height:
            x, width = x + thick, width - thick
        else:
            y, height = y + thick, height - thick


def _row(areas: Sequence[float], side: float) -> int:
    """Return how many of the areas make the row along a side in which none is long and thin."""
    total, worst = 0.0, float("inf")
    for count, each in enumerate(areas):
        total += each
        # the first is the largest and this one the smallest
        now = max(side**2 * areas[0] / total**2, total**2 / (side**2 * each))
        if now > worst:
            return count
        worst = now
    return len(areas)
