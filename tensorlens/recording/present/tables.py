"""Tables of lines, modules and resident blocks, the same for a recording and for an estimate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorlens.recording.analysis import Resident
from tensorlens.recording.present.moment_layout import BlockRow, LineRow, MomentLayout
from tensorlens.records.names import common_name
from tensorlens.records.tensors import SourceLine
from tensorlens.render.blocks import HTML_MEDIA, Cell, Column, Medium, Row, Table
from tensorlens.render.figures import LeftOut, duration, more_rows, share, size, size_cell
from tensorlens.render.shown import View
from tensorlens.render.source import place, printable

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_NUMBER_ABOVE = re.compile(r"(?<![^.])\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module, or several whose paths differ only in numbers."""

    path: str
    count: int
    nbytes: int
    """Bytes of all these modules."""


ModuleTable = tuple[tuple[ModuleRow, ...], LeftOut | None]
"""Rows that are shown, and the sum of the others."""


def module_rows(
    by_line: Mapping[SourceLine | None, int],
    by_module: Mapping[str | None, int],
    limit: int | None,
) -> ModuleTable:
    """Return the modules with most bytes and the sum of the others; no rows if lines say enough.

    Modules say more if one line has half of the bytes of all lines, such as the call of a library's
    model, and several modules are known.
    """
    known = [nbytes for line, nbytes in by_line.items() if line is not None]
    paths = [path for path in by_module if path is not None]
    if len(paths) < 2 or 2 * max(known, default=0) < sum(known):
        return (), None
    rows = _rows(by_module)
    limit = len(rows) if limit is None else limit
    rest = rows[limit:]
    hidden = LeftOut(sum(row.count for row in rest), sum(row.nbytes for row in rest), "")
    return tuple(rows[:limit]), hidden if rest else None


def _rows(by_module: Mapping[str | None, int]) -> list[ModuleRow]:
    rows = [
        ModuleRow(name, len(paths), sum(by_module[path] for path in paths))
        for name, paths in module_families(by_module)
    ]
    return sorted(rows, key=lambda row: (-row.nbytes, row.path))


def module_families(modules: Iterable[str | None]) -> list[tuple[str, list[str | None]]]:
    """Group modules whose paths differ only in numbers, under a common name.

    Only numbers of modules that contain modules count: plain layers of a ``Sequential`` are not
    alike.
    """
    modules = [*modules]
    paths = [path for path in modules if path is not None]
    above = {path[: number.end()] for path in paths for number in _NUMBER_ABOVE.finditer(path)}
    groups: dict[str, list[str | None]] = {}
    for path in paths:
        key = _NUMBER.sub(lambda n: "*" if n.string[: n.end()] in above else n[0], path)
        groups.setdefault(key, []).append(path)
    families = [
        (printable(common_name([path for path in alike if path is not None])), alike)
        for alike in groups.values()
    ]
    if None in modules:
        families.append(("(no module known)", [None]))
    return families


_OF_THE_MODEL = "A line of the model that the line above calls"


def line_cells(row: LineRow) -> tuple[Cell, str]:
    """Return the cells of a line and its source; a model's line is indented below the user's."""
    tip = _OF_THE_MODEL if row.is_model else ""
    return Cell(row.place.strip(), depth=int(row.is_model), tip=tip), row.source


def line_columns(has_source: bool) -> tuple[Column, ...]:
    """Return the columns of lines, with their source if known."""
    source = (Column("Source", "code", rank=0),) if has_source else ()
    return (Column("Line", "line"), *source)


def line_table(rows: Sequence[LineRow], hidden: LeftOut | None, whole: int, tip: str = "") -> Table:
    """Return the table of lines with their shares of ``whole`` bytes."""
    columns = line_columns(any(row.source for row in rows))
    parts = ((row.nbytes, line_cells(row)[: len(columns)]) for row in rows)
    return _shares(parts, columns, whole, tip, more_rows(hidden, "line"))


def module_table(
    rows: Sequence[ModuleRow], hidden: LeftOut | None, whole: int, tip: str = ""
) -> Table:
    """Return the table of modules with their shares of ``whole`` bytes."""
    parts = ((row.nbytes, (Cell(row.path, count=row.count),)) for row in rows)
    return _shares(parts, (Column("Module", "name"),), whole, tip, more_rows(hidden, "module"))


def _shares(
    parts: Iterable[tuple[int, tuple[Cell | str, ...]]],
    columns: Sequence[Column],
    whole: int,
    tip: str,
    rest: tuple[str, ...],
) -> Table:
    rows = (Row((size_cell(nbytes, whole), share(nbytes, whole), *more)) for nbytes, more in parts)
    return Table((Column("Size", tip=tip), Column("Share"), *columns), tuple(rows), rest=rest)


_NAMES = "fc1: saved by Addmm (mat2) is a tensor that autograd saved in fc1, mat2 of that operator"


def resident_table(layout: MomentLayout, view: View, medium: Medium) -> Table:
    """Return the table of resident blocks."""
    rows = layout.rows
    is_live = medium == "page"
    is_verbose = view.verbose and medium == "text"
    has_lines = any(row.first.charged for row in rows)
    where_lines_are = () if has_lines else HTML_MEDIA
    columns = (
        Column("Name", "name", key="name", in_full=is_verbose, tip=_NAMES),
        Column("Role", "text", key="role"),
        Column("Size", key="size", tip="Bytes"),
        Column("Age", rank=0, key="age", tip="How long it had been there"),
        Column("Line", "line", key="line", tip="The line it is counted for", only=where_lines_are),
        Column("Module", "name", key="module", only=HTML_MEDIA),
        Column("Made by", "name", key="op", only=HTML_MEDIA),
    )
    largest = max((row.nbytes for row in rows), default=0)
    hidden = tuple(text for each in layout.hidden for text in more_rows(each, "block"))
    return Table(
        columns,
        tuple(_row(row, largest, is_verbose=is_verbose) for row in rows),
        rest=hidden,
        name="blocks",
        is_live=is_live,
    )


def _row(row: BlockRow, largest: int, *, is_verbose: bool) -> Row:
    first = row.first
    cells = (
        Cell(row.name, row.count),
        first.role,
        Cell(size(row.nbytes), bar=(0.0, row.nbytes / largest if largest else 0.0)),
        "before" if first.age_ns is None else duration(first.age_ns),
        row.place,
        first.module or "",
        first.op or "",
    )
    return Row(cells, tuple(_everything(first, row.count)) if is_verbose else ())


def _everything(block: Resident, count: int) -> Iterator[str]:
    if block.dtype or block.shape is not None:
        shape = "" if block.shape is None else str(block.shape)
        yield " ".join(filter(None, (block.dtype, shape, "each" if count > 1 else "")))
    made = [block.op or "", f"in {block.module}" if block.module else "", block.phase]
    yield "made by " + ", ".join(filter(None, made))
    if block.born:
        yield f"born at {place(block.born, function=True)}"
    if block.charged and block.charged != block.born:
        yield f"counted for {place(block.charged, function=True)}"
    if block.model_line:
        yield f"line of the model {place(block.model_line, function=True)}"
