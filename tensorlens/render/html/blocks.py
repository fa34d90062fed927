"""Blocks as HTML, without any script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorlens.render.blocks import Block, Levels, Medium, of_medium, tables_of
from tensorlens.render.figures import heights, thinned
from tensorlens.render.html import treemap
from tensorlens.render.html.table import shown_table
from tensorlens.render.html.templates import environment

_WIDTH, _HEIGHT = 240, 28
"""Of a line of levels."""
_MOST_POINTS = 240


def markup(blocks: Sequence[Block], medium: Medium) -> str:
    """Return blocks as the body of a page, or as a cell: one ``<div>`` with styles of its own.

    The styles of a cell hold for nothing else; only a page may have a script.
    """
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
