"""Reports as HTML: a fragment for notebooks, or a whole page."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tensorlens.render.blocks import (
    Block,
    Cell,
    Column,
    Kind,
    Levels,
    Medium,
    Row,
    Table,
    of_medium,
    tables_of,
)
from tensorlens.render.figures import heights, thinned
from tensorlens.render.pictures import TREEMAP_HEIGHT, rectangles
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
"""Where names and lines may be broken, and where their long parts may be."""
_LONG = 18
"""Characters above which a part may be broken itself."""
_MARKS = {"peak": "▲", "growth": "●", "raised": "✗"}
_WHOLE = Markup('<span class="tl-whole">{}</span>')


@cache
def environment() -> Environment:
    """Return the environment of the templates, which escapes everything."""
    made = Environment(
        loader=PackageLoader("tensorlens.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["printable"] = printable
    made.filters["breakable"] = breakable
    made.filters["short"] = short_text
    made.globals.update(
        marks=_MARKS, title_classes=_title_classes, cell_classes=_classes, style=_style
    )
    return made


def breakable(text: str, kind: Literal["name", "line"]) -> Markup:
    """Return a text that a page may break between its parts, but not at a hyphen: ``[0-3]``."""
    joint, inside = _JOINTS[kind]
    pieces = (
        inside.split(part) if len(part) > _LONG else [part] for part in joint.split(printable(text))
    )
    parts = itertools.chain.from_iterable(pieces)
    return Markup("<wbr>").join(_WHOLE.format(part) if "-" in part else part for part in parts)


def from_template(template: str, **values: object) -> str:
    """Return a rendered template."""
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
"""Columns of a name or a path that are shown."""


def _columns(table: Table, medium: Medium) -> list[tuple[int, Column]]:
    """Return the columns that a medium shows, with their numbers."""
    rows = [row for row in table.all_rows if isinstance(row, Row)]
    return [
        (number, column)
        for number, column in enumerate(table.columns)
        if (not column.only or medium in column.only)
        and (column.rank is None or any(row.cell(number).text for row in rows))
    ]


def _title_classes(column: Column) -> str:
    gives_way = _GIVES_WAY if _gives_way(column) else ""
    return f"{_TITLES.get(column.kind, 'tl-text')} {gives_way}".strip()


def _gives_way(column: Column) -> bool:
    """Return whether a small screen leaves a column out; code is wrapped instead."""
    return column.rank is not None and column.kind != "code"


def _classes(cell: Cell, column: Column) -> str:
    """Return the classes of a cell."""
    classes = [
        _CLASSES[column.kind],
        _GIVES_WAY if _gives_way(column) else "",
        "" if cell.bar is None else f"tl-bar tl-{cell.tone}",
        "tl-top" if cell.mark or cell.is_top else "",
        "tl-part" if cell.depth else "",
    ]
    return " ".join(filter(None, classes))


def _style(cell: Cell) -> str:
    styles = []
    if cell.bar is not None:
        begin, end = cell.bar
        styles.append(f"--tl-from: {100 * begin:.1f}%; --tl-to: {100 * end:.1f}%")
    if cell.depth:
        styles.append(f"--tl-depth: {cell.depth}")
    return "; ".join(styles)


def short_text(text: str) -> str:
    """Return a name or a path, clipped to the length that a page shows."""
    return clipped(printable(text), _LONGEST, "…")


_WIDTH, _HEIGHT = 240, 28
"""Size of a line of levels in pixels."""
_MAX_POINTS = 240


def markup(blocks: Sequence[Block], medium: Medium) -> str:
    """Return blocks as the body of a page, or as a cell: one ``<div>`` with styles of its own.

    The styles apply to the cell alone; only a page may have a script.
    """
    shown = of_medium(blocks, medium)
    return from_template(
        "blocks.html",
        blocks=shown,
        on_page=medium == "page",
        boxes=rectangles,
        treemap_height=TREEMAP_HEIGHT,
        has_tables_script=medium == "page" and any(each.opening for each in tables_of(shown)),
        kind=lambda block: type(block).__name__,
        columns=lambda table: _columns(table, medium),
        line=_line,
        box=(_WIDTH, _HEIGHT),
    )


def _line(levels: Levels) -> str:
    """Return the points of a line through the levels, for SVG."""
    series = thinned(levels.series, _MAX_POINTS)
    across = _WIDTH / max(1, len(series) - 1)
    points = [
        f"{at * across:.1f},{(1 - height) * (_HEIGHT - 4) + 2:.1f}"
        for at, height in enumerate(heights(series))
    ]
    return " ".join(points if len(points) > 1 else [*points, f"{_WIDTH}.0,{_HEIGHT - 2}.0"])


_ROWS_OF_A_PAGE = 500


def html_page(record: Shown, view: View | None = None) -> str:
    """Return one self-contained page, to be written as UTF-8: light and dark, nothing loaded.

    The page of a recording, and of an estimate with its recording, has a script that shows any
    instant; long tables have one that sorts and filters them.

    Args:
        record: the record.
        view: tensors of a snapshot or a difference to show, and how fully; None shows the 500
            largest of each device. For a recording, its devices and the instant shown first.
    """
    record = permitted(record)
    own = record.presenter()
    body = markup(own.blocks(record, view or View(top=_ROWS_OF_A_PAGE)), "page")
    return from_template("page.html", title=own.TITLE, body=body, run=provenance(record))


def fragment(record: Shown) -> str:
    """Return the record as one ``<div>`` for a notebook cell, without any script.

    Every style is scoped to its class, and it stays readable without styles.
    """
    record = permitted(record)
    return markup(record.presenter().blocks(record, View()), "cell")
