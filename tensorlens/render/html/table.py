"""Tables as HTML: what the template writes of each cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tensorlens.render.blocks import Cell, Column, Fold, Kind, Medium, Row, Table
from tensorlens.render.source import clipped, printable

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
_MARKS = {"": "", "peak": "▲", "growth": "●", "raised": "✗"}


@dataclass(frozen=True, slots=True)
class ShownCell:
    """A cell as the template writes it."""

    cell: Cell
    classes: str
    style: str
    mark: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row as the template writes it."""

    state: str
    cells: tuple[ShownCell, ...]
    details: tuple[str, ...] = ()
    fold: Fold | None = None
    """Rows that are folded away, where this row stands for them."""

    @property
    def sources(self) -> list[str]:
        """The last cells of the rows that are folded away."""
        rows = self.fold.rows if self.fold else ()
        return [_cell(row.cells[-1]).text for row in rows]


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table as the template writes it."""

    table: Table
    titles: tuple[tuple[Column, str], ...]
    """Columns, each with its class."""
    rows: tuple[ShownRow, ...]

    @property
    def has_remarks(self) -> bool:
        """Whether single rows have details, and no prose that these stand below."""
        has_prose = any(column.kind == "prose" for column, _ in self.titles)
        return not has_prose and any(row.details for row in self.rows)


def shown_table(table: Table, medium: Medium) -> ShownTable:
    """Return what a medium has of a table."""
    places = [
        place
        for place, column in enumerate(table.columns)
        if (not column.only or medium in column.only)
        and (column.rank is None or any(_text(row, place) for row in table.rows))
    ]
    columns = [table.columns[place] for place in places]
    titles = tuple((column, _title_classes(column)) for column in columns)
    return ShownTable(table, titles, tuple(_rows(table, places)))


def _rows(table: Table, places: list[int]) -> Iterator[ShownRow]:
    for row in table.rows:
        if isinstance(row, Fold):
            yield ShownRow("idle", (), fold=row)
            continue
        row = row if isinstance(row, Row) else Row(row)
        cells = (_shown(_cell(row.cells[place]), table.columns[place]) for place in places)
        yield ShownRow(row.state, tuple(cells), row.details)


def _text(row: tuple[str, ...] | Row | Fold, place: int) -> str:
    if isinstance(row, Fold):
        return ""
    return _cell((row.cells if isinstance(row, Row) else row)[place]).text


def _cell(cell: str | Cell) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _title_classes(column: Column) -> str:
    gives_way = _GIVES_WAY if _gives_way(column) else ""
    return f"{_TITLES.get(column.kind, 'tl-text')} {gives_way}".strip()


def _gives_way(column: Column) -> bool:
    """Tell whether a small screen leaves a column out: code wraps instead."""
    return column.rank is not None and column.kind != "code"


def _shown(cell: Cell, column: Column) -> ShownCell:
    kind = column.kind
    classes, style = [_CLASSES[kind]], []
    if _gives_way(column):
        classes.append(_GIVES_WAY)
    if cell.bar is not None:
        begin, end = cell.bar
        classes.append(f"tl-bar tl-{cell.tone}")
        style.append(f"--tl-from: {100 * begin:.1f}%; --tl-to: {100 * end:.1f}%")
    if cell.mark or cell.is_top:
        classes.append("tl-top")
    if cell.depth:
        classes.append("tl-part")
        style.append(f"--tl-depth: {cell.depth}")
    if kind not in ("code", "source", "prose"):
        cell = replace(cell, text=clipped(printable(cell.text), _LONGEST, "…"))
    found = " ".join(filter(None, classes))
    return ShownCell(cell, found, "; ".join(style), _MARKS[cell.mark], kind)
