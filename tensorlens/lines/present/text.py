"""Line reports as text, with the source at the far right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tabulate import tabulate

from tensorlens.lines.present.layout import (
    GRAPH_COLUMNS,
    GRAPHS,
    Entry,
    Fold,
    FunctionLayout,
    Row,
    device_header,
    devices_of,
    layouts,
)
from tensorlens.render.figures import device_names, duration, size
from tensorlens.render.source import clipped, printable, width
from tensorlens.render.text.page import GAP, Glyphs, Page, wrapped

if TYPE_CHECKING:
    from tensorlens.records.lines import LineReport


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    cell: Callable[[Row, Entry | None, Glyphs], str]
    source_room: int | None
    """The columns that must stay for the source to have this one too; None keeps it always."""


def _marked(text: str, mark: str) -> str:
    return f"{mark} {text}" if mark else text


def _line(row: Row, entry: Entry | None, glyphs: Glyphs) -> str:
    return _marked(str(row.line.lineno), glyphs.raised if row.line.raised is not None else "")


def _device(row: Row, entry: Entry | None, glyphs: Glyphs) -> str:
    if entry is not None:
        return device_names(entry.devices)
    return "no change" if row.line.memory else ""


def _peak(row: Row, entry: Entry | None, glyphs: Glyphs) -> str:
    if entry is None:
        return ""
    return _marked(size(entry.memory.peak), glyphs.peak if entry.highest_peak else "")


def _net(row: Row, entry: Entry | None, glyphs: Glyphs) -> str:
    if entry is None:
        return ""
    text = size(entry.memory.net, signed=True)
    return _marked(text, glyphs.growth if entry.largest_growth else "")


def _figure(field: str, *, signed: bool = False) -> Callable[[Row, Entry | None, Glyphs], str]:
    def cell(row: Row, entry: Entry | None, glyphs: Glyphs) -> str:
        return "" if entry is None else size(getattr(entry.memory, field), signed=signed)

    return cell


def _backward(row: Row, entry: Entry | None, glyphs: Glyphs) -> str:
    # a device may have had no recording where another had one
    if entry is None or entry.memory.backward is None:
        return ""
    return size(entry.memory.backward)


_COLUMNS = (
    _Column("Line", _line, None),
    _Column("Hits", lambda row, _, __: str(row.line.hits or ""), 24),
    _Column("Time", lambda row, _, __: duration(row.line.time_ns) if row.line.time_ns else "", 32),
    _Column("Device", _device, None),
    _Column("Allocated", _figure("allocated"), 32),
    _Column("Peak", _peak, None),
    _Column("Reserved", _figure("reserved"), 36),
    _Column("Net", _net, None),
    _Column("Net max", _figure("net_max", signed=True), 44),
    _Column("Net first", _figure("net_first", signed=True), 44),
    _Column("Backward", _backward, 28),
)
_OF_THE_LINE = ("Line", "Hits", "Time")
_OF_REPEATS = ("Net max", "Net first")
_MOST_WANTED = ("Hits", "Backward", "Allocated", "Time", "Reserved", "Net max", "Net first")


def line_parts(report: LineReport, page: Page) -> list[str]:
    """Return the parts of the report: header, one table per function, legend."""
    functions = layouts(report)
    several = len(devices_of(report)) > 1
    found = [_header(report, page.width)]
    tables = []
    for of_graphs in (False, True):
        alike = [function for function in functions if function.is_of_graphs is of_graphs]
        table = _Table(alike, page.width, page.glyphs, several=several, of_graphs=of_graphs)
        tables.append(table)
        if of_graphs and alike:
            found.append(_about_graphs(table))
        found += [_function(function, table) for function in alike if function.body]
    found.append("\n".join(_uncalled(function) for function in functions if not function.body))
    found.append(_legend(functions, tables))
    return found


class _Table:
    """The columns that all tables of one report have, so that they read alike."""

    def __init__(
        self,
        functions: Sequence[FunctionLayout],
        limit: int,
        glyphs: Glyphs,
        *,
        several: bool,
        of_graphs: bool,
    ) -> None:
        self.limit = limit
        self.glyphs = glyphs
        self._several = several
        self._of_graphs = of_graphs
        self._figures = any(function.entries for function in functions)
        self._repeated = any(function.repeated for function in functions)
        self._recorded = any(function.recorded for function in functions)
        self._timed = any(row.line.time_ns for function in functions for row in function.rows)
        rows = [row for function in functions for row in function.body]
        longest = max((width(_source(row, glyphs)) for row in rows), default=0)
        widths = {column.title: self._width_of(column, functions) for column in _COLUMNS}
        wanted = [column for column in _COLUMNS if self._is_wanted(column)]
        chosen = [column for column in wanted if column.source_room is None]
        used = sum(widths[column.title] + GAP for column in chosen)
        for column in sorted(
            (column for column in wanted if column.source_room is not None),
            key=lambda column: _MOST_WANTED.index(column.title),
        ):
            needed = widths[column.title] + GAP
            if limit - used - needed >= min(longest, column.source_room or 0):
                chosen.append(column)
                used += needed
        self.columns = [column for column in _COLUMNS if column in chosen]
        self.left_out = [column.title for column in wanted if column not in chosen]
        self._room = max(limit - used, 8)

    def _is_wanted(self, column: _Column) -> bool:
        if column.title in ("Line", "Hits"):
            return True
        if column.title == "Time":
            return self._timed
        if column.title == "Device":
            return self._several
        if column.title == "Backward":
            return self._recorded
        if self._of_graphs and column.title in (*_OF_REPEATS, "Reserved"):
            return False
        return self._figures and (self._repeated or column.title not in _OF_REPEATS)

    def _width_of(self, column: _Column, functions: Sequence[FunctionLayout]) -> int:
        cells = (
            column.cell(row, entry, self.glyphs)
            for function in functions
            for row in function.rows
            for entry in (row.entries or (None,))
        )
        return max(len(column.title), max(map(len, cells), default=0))

    def draw(self, body: Sequence[Row | Fold]) -> str:
        """Return the table of one function."""
        titles = [column.title for column in self.columns]
        cells = [[*titles, f"{self.glyphs.bar} Source"]]
        for row in body:
            cells += self._cells(row)
        # a bar starts every source because tabulate strips leading blanks, and its switch for
        # that is a global of the user's program; titles are an ordinary row because tabulate
        # pads headers by two more columns
        lines = tabulate(
            cells,
            tablefmt="plain",
            disable_numparse=True,
            colalign=[*("right" if title != "Device" else "left" for title in titles), "left"],
        ).splitlines()
        lines = [line.rstrip() for line in lines]
        rule = self.glyphs.rule * min(self.limit, max(map(width, lines)))
        return "\n".join([lines[0], rule, *lines[1:]])

    def _cells(self, row: Row | Fold) -> Iterator[list[str]]:
        source = clipped(_source(row, self.glyphs), self._room, self.glyphs.ellipsis)
        if isinstance(row, Fold):
            yield [*("" for _ in self.columns), source]
            return
        for index, entry in enumerate(row.entries or (None,)):
            cells = [column.cell(row, entry, self.glyphs) for column in self.columns]
            if index:
                titles = (column.title for column in self.columns)
                cells = [
                    "" if title in _OF_THE_LINE else cell
                    for title, cell in zip(titles, cells, strict=True)
                ]
            yield [*cells, self.glyphs.bar if index else source]


def _source(row: Row | Fold, glyphs: Glyphs) -> str:
    text = f"{glyphs.ellipsis} {row.text}" if isinstance(row, Fold) else row.source
    return f"{glyphs.bar} {text}".rstrip()


def _header(report: LineReport, limit: int) -> str:
    kind = "" if report.provenance == "measured" else f" ({printable(report.provenance)})"
    process = f", {printable(report.process)}" if report.process else ""
    lines = [f"Memory per line{kind}{process}"]
    devices = device_header(report)
    column = max((width(names) for names, _ in devices), default=0)
    for names, source in devices:
        lines += wrapped(f"  {names:{column}}  ", source, limit)
    for note in report.notes:
        lines += wrapped("  note: ", printable(note), limit)
    if not report.functions:
        lines.append("  no function was profiled")
    return "\n".join(lines)


def _function(function: FunctionLayout, table: _Table) -> str:
    title = "  ".join((function.title, function.place, function.calls))
    if width(title) > table.limit:
        title = f"{function.title}  {function.calls}\n{function.place}"
    lines = [title, table.draw(function.body)]
    for row in function.raised:
        raised = printable(" ".join((row.line.raised or "").split()))
        start = f"{table.glyphs.raised} line {row.line.lineno} raised "
        lines += wrapped(start, raised, table.limit)
    for remark in function.remarks:
        lines += wrapped("", remark, table.limit)
    return "\n".join(lines)


def _about_graphs(table: _Table) -> str:
    meanings = (
        f"{column.title}: {GRAPH_COLUMNS[column.title]}"
        for column in table.columns
        if column.title in GRAPH_COLUMNS
    )
    return "\n".join(
        [
            *wrapped("", GRAPHS, table.limit),
            *wrapped("", f"{'; '.join(meanings)}. Blank: nothing was handed out.", table.limit),
        ]
    )


def _uncalled(function: FunctionLayout) -> str:
    return "  ".join((function.title, function.place, *function.remarks))


def _legend(functions: Sequence[FunctionLayout], tables: Sequence[_Table]) -> str:
    table = tables[0]
    entries = [entry for function in functions for entry in function.entries]
    marks = []
    if any(entry.highest_peak for entry in entries):
        marks.append(f"{table.glyphs.peak} highest peak")
    if any(entry.largest_growth for entry in entries):
        marks.append(f"{table.glyphs.growth} largest growth")
    if any(function.raised for function in functions):
        marks.append(f"{table.glyphs.raised} raised")
    lines = wrapped("", "   ".join(marks), table.limit)
    left_out = dict.fromkeys(title for each in tables for title in each.left_out)
    if left_out:
        names = ", ".join(left_out)
        text = f"Left out to fit {table.limit} characters: {names}. "
        lines += wrapped("", text + "A wider terminal, .html and .csv show all.", table.limit)
    return "\n".join(lines)
