"""A treemap: every rectangle as large as its bytes, and none long and thin if it can be helped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

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
    for group, area in _divided(treemap.groups, (0.0, 0.0, WIDTH, HEIGHT)):
        found.append(_rectangle(group, area, is_group=True))
        x, y, width, height = area
        title = min(_TITLE, height / 2)
        inside = (x, y + title, width, max(height - title, 0.0))
        found += [_rectangle(box, place) for box, place in _divided(group.boxes, inside)]
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


def _divided(boxes: Sequence[Box], area: _Area) -> Iterator[tuple[Box, _Area]]:
    """Give each box its rectangle within an area, the largest first.

    The area is cut across its longer side into two halves as even as the sizes allow, and so on.
    """
    left = sorted((box for box in boxes if box.nbytes > 0), key=lambda box: -box.nbytes)
    if len(left) < 2:
        yield from ((box, area) for box in left)
        return
    sums = [*accumulate(box.nbytes for box in left)]
    cut = min(range(1, len(left)), key=lambda place: abs(2 * sums[place - 1] - sums[-1]))
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
