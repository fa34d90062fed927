"""Blocks as HTML, without any script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorlens.render.blocks import Block, Levels, Medium, Plane, of_medium, tables_of
from tensorlens.render.figures import heights, thinned
from tensorlens.render.html import treemap
from tensorlens.render.html.table import shown_table
from tensorlens.render.html.templates import environment
from tensorlens.render.source import clipped, width

_WIDTH, _HEIGHT = 240, 28
"""Of a line of levels."""
_MOST_POINTS = 240
_PLANE = (720, 300, 64)
"""Width and height of a plane, in its own units, and the room for its labels."""
_LETTER, _LINE_HEIGHT, _NAME_LENGTH = 6.5, 12, 40
"""Of a plane's names, in its own units."""
_NAME_STEPS = (4, -9, 17, -22, 30, -35, 43, -48, 56, -61, 69, -74, 82, -87, 95, -100)
"""How far below its point a name's line stands, the nearest first."""
_DOT = 7
"""Half of the room of a point."""


def fragment(blocks: Sequence[Block]) -> str:
    """Return blocks as one ``<div>`` whose styles hold for nothing else."""
    return _written(blocks, "cell")


def page(blocks: Sequence[Block]) -> str:
    """Return blocks as the body of a page, which may have a script."""
    return _written(blocks, "page")


def _written(blocks: Sequence[Block], medium: Medium) -> str:
    template = environment().get_template("blocks.html")
    found = of_medium(blocks, medium)
    return template.render(
        blocks=found,
        on_page=medium == "page",
        boxes=treemap.rectangles,
        treemap_height=treemap.HEIGHT,
        has_tables_script=medium == "page" and any(each.opening for each in tables_of(found)),
        kind=_kind,
        shown=lambda table: shown_table(table, medium),
        line=_line,
        box=(_WIDTH, _HEIGHT),
        plane=_plane,
        across=_across,
        upward=_upward,
        size=_PLANE,
    )


def _kind(block: Any) -> str:
    return type(block).__name__


def _line(levels: Levels) -> str:
    """Return the points of a line through the levels, as SVG has them."""
    series = thinned(levels.series, _MOST_POINTS)
    across = _WIDTH / max(1, len(series) - 1)
    points = [
        f"{at * across:.1f},{(1 - height) * (_HEIGHT - 4) + 2:.1f}"
        for at, height in enumerate(heights(series))
    ]
    return " ".join(points if len(points) > 1 else [*points, f"{_WIDTH}.0,{_HEIGHT - 2}.0"])


def _across(part: float) -> float:
    wide, _, room = _PLANE
    return round(room + (wide - 2 * room) * part, 1)


def _upward(part: float) -> float:
    _, high, room = _PLANE
    return round(high - room - (high - 2 * room) * part, 1)


def _plane(plane: Plane) -> list[dict[str, Any]]:
    """Return where the points of a plane are drawn, and where their names have room."""
    found: list[dict[str, Any]] = []
    places = [(_across(point.x), _upward(point.y)) for point in plane.points]
    # left, right and middle of what nothing is written over: points, then names
    taken = [(x - _DOT, x + _DOT, y) for x, y in places]
    for point, (x, y) in zip(plane.points, places, strict=True):
        name = clipped(point.name, _NAME_LENGTH, "…")
        wide = _LETTER * width(name)
        left = min(x + _DOT + 1, _PLANE[0] - wide)
        lines = [y + step for step in _NAME_STEPS if _LINE_HEIGHT < y + step < _upward(0)]
        line = next((each for each in lines if _is_free(left, left + wide, each, taken)), lines[0])
        taken.append((left, left + wide, line - 4))
        found.append(
            {
                **{"point": point, "x": x, "y": y},
                **{"low": _across(point.low), "high": _across(point.high)},
                **{"name": name, "name_x": round(left, 1), "name_y": round(line, 1)},
            }
        )
    return found


def _is_free(
    left: float, right: float, line: float, taken: Sequence[tuple[float, float, float]]
) -> bool:
    """Tell whether a name has room on a line, whose middle is 4 above it."""
    return not any(
        abs(line - 4 - middle) < _LINE_HEIGHT and left < end and begin < right
        for begin, end, middle in taken
    )
