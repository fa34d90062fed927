"""Reports as HTML: a fragment for notebooks, and a page of its own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tensorlens.render.blocks import (
    Block,
    Box,
    Cell,
    Column,
    Kind,
    Levels,
    Medium,
    Row,
    Table,
    Treemap,
    of_medium,
    tables_of,
)
from tensorlens.render.figures import heights, thinned
from tensorlens.render.shown import View, permitted, provenance
from tensorlens.render.source import clipped, printable

if TYPE_CHECKING:
    from tensorlens.render.shown import Shown

_JOINTS = {
    "name": (
        re.compile(r"(?<=[./:])(?=[A-Za-z_\[])"),
        re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=_)(?=\w{3})"),
    ),
    "line": (re.compile(r"(?<=[/\\ ])(?=.)"), re.compile(r"(?<=_)(?=\w{3})|(?<=\.)(?=[a-z_]+$)")),
}
"""Where names and places in files may be broken, and where long parts of them."""
_LONG = 18
_MARKS = {"peak": "▲", "growth": "●", "raised": "✗"}
_WHOLE = Markup('<span class="tl-whole">{}</span>')


@cache
def environment() -> Environment:
    """Return jinja2 as the templates need it: everything is escaped."""
    found = Environment(
        loader=PackageLoader("tensorlens.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["printable"] = printable
    found.filters["breakable"] = breakable
    found.filters["short"] = short_text
    found.globals.update(
        marks=_MARKS, title_classes=_title_classes, cell_classes=_classes, style=_style
    )
    return found


def breakable(text: str, kind: Literal["name", "line"]) -> Markup:
    """Return a text that a page breaks where its parts meet, and nowhere in ``[0-3]``."""
    joint, inside = _JOINTS[kind]
    pieces = (
        inside.split(part) if len(part) > _LONG else [part] for part in joint.split(printable(text))
    )
    parts = itertools.chain.from_iterable(pieces)
    return Markup("<wbr>").join(_WHOLE.format(part) if "-" in part else part for part in parts)


def from_template(template: str, **values: object) -> str:
    """Return what a template makes of values."""
    return environment().get_template(template).render(**values)


_CLASSES: Mapping[Kind, str] = {
    "figure": "",
    "text": "tl-text",
    "name": "tl-text tl-tensor",
    "line": "tl-text tl-long",
    "prose": "tl-text tl-soft tl-remarks",
    "code": "tl-text tl-source",
    "source": "tl-text tl-source tl-listing",
}
_TITLES: Mapping[Kind, str] = {
    "figure": "",
    "name": "tl-text tl-tensor",
    "code": "tl-text tl-source",
    "source": "tl-text tl-source",
}
_GIVES_WAY = "tl-gives-way"
"""Class of columns that a small screen leaves out."""
_LONGEST = 200
"""So many columns of a name or a path are shown."""


def _columns(table: Table, medium: Medium) -> list[tuple[int, Column]]:
    """Return the columns that a medium has, with their places."""
    rows = [row for row in table.all_rows if isinstance(row, Row)]
    return [
        (place, column)
        for place, column in enumerate(table.columns)
        if (not column.only or medium in column.only)
        and (column.rank is None or any(row.cell(place).text for row in rows))
    ]


def _title_classes(column: Column) -> str:
    gives_way = _GIVES_WAY if _gives_way(column) else ""
    return f"{_TITLES.get(column.kind, 'tl-text')} {gives_way}".strip()


def _gives_way(column: Column) -> bool:
    """Tell whether a small screen leaves a column out: code wraps instead."""
    return column.rank is not None and column.kind != "code"


def _classes(cell: Cell, column: Column) -> str:
    """Return the classes of a cell."""
    found = [
        _CLASSES[column.kind],
        _GIVES_WAY if _gives_way(column) else "",
        "" if cell.bar is None else f"tl-bar tl-{cell.tone}",
        "tl-top" if cell.mark or cell.is_top else "",
        "tl-part" if cell.depth else "",
    ]
    return " ".join(filter(None, found))


def _style(cell: Cell) -> str:
    found = []
    if cell.bar is not None:
        begin, end = cell.bar
        found.append(f"--tl-from: {100 * begin:.1f}%; --tl-to: {100 * end:.1f}%")
    if cell.depth:
        found.append(f"--tl-depth: {cell.depth}")
    return "; ".join(found)


def short_text(text: str) -> str:
    """Return text that is no longer than a page shows of a name or a path."""
    return clipped(printable(text), _LONGEST, "…")


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


_WIDTH, _HEIGHT = 240, 28
"""Of a line of levels."""
_MOST_POINTS = 240


def markup(blocks: Sequence[Block], medium: Medium) -> str:
    """Return blocks as the body of a page, or as a cell: one ``<div>`` with styles of its own.

    The styles of a cell hold for nothing else; only a page may have a script.
    """
    found = of_medium(blocks, medium)
    return from_template(
        "blocks.html",
        blocks=found,
        on_page=medium == "page",
        boxes=rectangles,
        treemap_height=HEIGHT,
        has_tables_script=medium == "page" and any(each.opening for each in tables_of(found)),
        kind=_kind,
        columns=lambda table: _columns(table, medium),
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


_ROWS_OF_A_PAGE = 500


def html_page(record: Shown, view: View | None = None) -> str:
    """Return one self-contained page, to be written as UTF-8: light and dark, nothing loaded.

    A recording's page, and an estimate's, which has its recording on it, have a script of ours,
    with which any instant can be looked at; so have long tables, to sort and filter them.

    Args:
        record: what is shown.
        view: which tensors of a snapshot or a difference are shown, and how fully. None shows
            the 500 largest of each device. Of a recording, it chooses devices and the instant
            that is shown first.
    """
    record = permitted(record)
    own = record.presenter()
    body = markup(own.blocks(record, view or View(top=_ROWS_OF_A_PAGE)), "page")
    return from_template("page.html", title=own.TITLE, body=body, run=provenance(record))


def fragment(record: Shown) -> str:
    """Return the record as one ``<div>`` for a notebook cell, without any script.

    Every style is scoped to its class, and it stays readable where styles are taken away.
    """
    record = permitted(record)
    return markup(record.presenter().blocks(record, View()), "cell")
