"""The tables of a line report, one per function, with the source at the far right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tensorlens.lines.present.layout import (
    GRAPH_COLUMNS,
    GRAPHS,
    Entry,
    Fold,
    FunctionLayout,
    ShownLine,
)
from tensorlens.lines.present.overview import (
    FEW_FUNCTIONS,
    Overview,
    highest,
)
from tensorlens.render import blocks
from tensorlens.render.blocks import (
    HTML_MEDIA,
    Block,
    Cell,
    Column,
    Key,
    Legend,
    Note,
    Only,
    Paragraph,
    Section,
    Table,
    Tone,
)
from tensorlens.render.figures import device_names, duration, size
from tensorlens.render.shown import SHOW_ALL, View

_COLUMN_TIPS = {
    "Line": "Line number",
    "Hits": "How often the line ran",
    "Time": "Wall time over all hits, calls included",
    "Device": "The devices the figures are of",
    "Allocated": "Bytes handed out when the line ended; the largest over its hits",
    "Peak": "The most bytes handed out at any instant while the line ran",
    "Reserved": "Bytes the allocator held from the driver, on the CPU the process's resident set; "
    "the largest over its hits",
    "Net sum": "Bytes that the line left, freed ones subtracted: the sum over all its hits",
    "Net max": "The largest net of a single hit",
    "Net first": "The net of the first hit",
    "Backward": "Bytes allocated in backward because of this line, as recorded",
}
"""Title of each column, in order, to its meaning."""
_SOURCE_WIDTHS = {
    **{"Net first": 44, "Net max": 44, "Reserved": 36, "Time": 32, "Allocated": 32},
    **{"Backward": 28, "Hits": 24},
}
"""Columns in the order in which they are dropped in a narrow table, and the least width of the
source for each to stay."""
_NOT_OF_GRAPHS = ("Time", "Reserved", "Net max", "Net first")
"""Columns without figures in tables of graphs."""
_NEED_SEVERAL_HITS = ("Net max", "Net first")
_OVERVIEW_COLUMNS = ("Device", "Peak", "Net sum", "Backward")
_NET = "Net sum: what a line left, all hits added; other lines may free it."
_ALWAYS_SHOWN = ("Line", "Hits", "Time", "Device")
"""Columns that need no figures."""


def function_tables(
    functions: Sequence[FunctionLayout],
    overview: Overview,
    columns: Sequence[Column],
    name: str,
    view: View,
) -> Iterator[Block]:
    """Yield the key, the lines to look at first, and the tables of comparable functions."""
    drawing = _Drawing(overview, _BarScales.of_functions(functions))
    keys = tuple(_legend_keys(functions, overview))
    first: list[Block] = [Legend(keys)] if keys else []
    if name == "code" and any(entry.memory.net for each in functions for entry in each.entries):
        first.append(Paragraph(_NET))
    if overview.places:
        first.append(_lines_first(drawing, columns))
    if first:
        yield Section(tuple(first))
    folded = [each for each in functions if overview.is_folded(each)]
    # a text lists folded functions by name only, if there are many functions
    is_short = view.top is not None and len(functions) > FEW_FUNCTIONS
    for each in functions:
        section = _function(each, columns, name, drawing)
        section = replace(section, is_folded=overview.is_folded(each))
        yield (
            Only(HTML_MEDIA, partial(list, [section]))
            if is_short and section.is_folded
            else section
        )
    if is_short and folded:
        yield Only(("text",), lambda: [_folded_functions(folded)])


def _lines_first(drawing: _Drawing, columns: Sequence[Column]) -> Table:
    """Return the table of lines to look at first."""
    titles = [title for title in _OVERVIEW_COLUMNS if any(each.title == title for each in columns)]
    has_source = any(each.title == "Source" for each in columns)
    rows = []
    for each in drawing.overview.places:
        cells = drawing.figures(each.entry)
        figures = tuple(cells[title] for title in titles)
        source = (each.row.source.strip(),) if has_source else ()
        rows.append(blocks.Row((*figures, each.place, each.qualname, *source)))
    return Table(
        (
            *(each for each in columns if each.title in titles),
            Column("Line", "line"),
            Column("Function", "name", rank=0),
            *((Column("Source", "code"),) if has_source else ()),
        ),
        tuple(rows),
        heading="Lines to look at first",
    )


def _folded_functions(functions: Sequence[FunctionLayout]) -> Table:
    """Return a table with one row for each folded function."""
    return Table(
        (
            Column("Peak"),
            Column("Calls"),
            Column("Function", "name"),
            Column("Defined at", "line"),
        ),
        tuple(
            (size(highest(each)), f"{each.function.calls:,}", each.title, each.place)
            for each in functions
        ),
        rest=(f"the lines of these {len(functions)} functions ({SHOW_ALL})",),
    )


def function_columns(
    functions: Sequence[FunctionLayout], *, several: bool, of_graphs: bool = False
) -> tuple[Column, ...]:
    """Return the columns that all tables of these functions share."""
    absent = {*_NOT_OF_GRAPHS} if of_graphs else set[str]()
    if not several:
        absent.add("Device")
    if not any(each.repeated for each in functions):
        absent.update(_NEED_SEVERAL_HITS)
    if not any(each.recorded for each in functions):
        absent.add("Backward")
    if not any(each.entries for each in functions):
        absent.update(title for title in _COLUMN_TIPS if title not in _ALWAYS_SHOWN)
    has_source = any(line.source for each in functions for line in each.function.lines)
    return (
        *(
            Column(
                title,
                "text" if title == "Device" else "figure",
                [*_SOURCE_WIDTHS].index(title) if title in _SOURCE_WIDTHS else None,
                _SOURCE_WIDTHS.get(title, 0),
                tip=GRAPH_COLUMNS.get(title, tip) if of_graphs else tip,
            )
            for title, tip in _COLUMN_TIPS.items()
            if title not in absent
        ),
        *((Column("Source", "source"),) if has_source else ()),
    )


def about_graphs(columns: Sequence[Column]) -> Section:
    """Return the explanation that precedes the tables of graphs."""
    titles = [each.title for each in columns if each.title in GRAPH_COLUMNS]
    meanings = "; ".join(f"{title}: {GRAPH_COLUMNS[title]}" for title in titles)
    # in a page these are the tips of the titles
    words = Paragraph(f"{meanings}. Blank: nothing was handed out.")
    return Section((Paragraph(GRAPHS), Only(("text",), lambda: [words])))


def _function(
    function: FunctionLayout, columns: Sequence[Column], name: str, drawing: _Drawing
) -> Section:
    rows = (row for each in function.body for row in _rows(each, columns, drawing))
    failures = (
        Note(
            f"line {row.line.lineno} raised {' '.join((row.line.raised or '').split())}",
            "error",
            mark="raised",
        )
        for row in function.raised
    )
    return Section(
        (
            Table(tuple(columns), tuple(rows), name=name, is_wide=True),
            *failures,
            *(Note(each, "soft") for each in function.remarks),
        ),
        function.title,
        asides=(function.place, function.calls, *_peak(function)),
        can_fold=True,
    )


def _rows(
    row: ShownLine | Fold, columns: Sequence[Column], drawing: _Drawing
) -> Iterator[blocks.Row | blocks.Fold]:
    if isinstance(row, Fold):
        sources = (
            blocks.Row(tuple(each.source if column.title == "Source" else "" for column in columns))
            for each in row.rows
        )
        yield blocks.Fold(row.text, tuple(sources))
        return
    line = row.line
    raised = line.raised is not None
    own: dict[str, str | Cell] = {
        "Line": Cell(str(line.lineno), mark="raised", tip="raised") if raised else str(line.lineno),
        "Hits": str(line.hits or ""),
        "Time": duration(line.time_ns) if line.time_ns else "",
        "Device": "no change" if line.memory else "",
        "Source": row.source,
    }
    for number, entry in enumerate(row.entries or (None,)):
        cells = own if number == 0 else {}
        if entry is not None:
            cells = {**cells, **drawing.figures(entry)}
        yield blocks.Row(
            tuple(cells.get(each.title, "") for each in columns),
            state="failed" if raised else "" if line.hits else "idle",
        )


def _peak(function: FunctionLayout) -> tuple[str, ...]:
    highest_peak = highest(function)
    return (f"peak {size(highest_peak)}",) if highest_peak else ()


def _legend_keys(functions: Sequence[FunctionLayout], overview: Overview) -> Iterator[Key]:
    """Yield the keys of the marks and colours in use."""
    if overview.peaks:
        yield Key("highest peak", "peak", "var(--tl-peak-top)")
    if overview.growths:
        yield Key("most that stayed", "growth", "var(--tl-growth-top)")
    if any((entry.memory.net or 0) < 0 for each in functions for entry in each.entries):
        yield Key("released", swatch="var(--tl-release)")
    if any(function.raised for function in functions):
        yield Key("raised", "raised")


@dataclass(frozen=True, slots=True)
class _Drawing:
    """The drawing of comparable functions: one scale, one mark of each kind."""

    overview: Overview
    scales: _BarScales

    def figures(self, entry: Entry) -> dict[str, str | Cell]:
        """Return the cells of a line on a device by the titles of their columns."""
        memory = entry.memory
        tone: Tone = "release" if (memory.net or 0) < 0 else "growth"
        peak = Cell(size(memory.peak), bar=self.scales.peak(entry))
        net = Cell(size(memory.net, signed=True), bar=self.scales.net(entry), tone=tone)
        if self.overview.is_peak(entry):
            peak = replace(peak, mark="peak", tip="highest peak")
        if self.overview.is_growth(entry):
            net = replace(net, mark="growth", tip="most that stayed")
        return {
            "Device": device_names(entry.devices),
            "Allocated": size(memory.allocated),
            "Peak": peak,
            "Reserved": size(memory.reserved),
            "Net sum": net,
            "Net max": size(memory.net_max, signed=True),
            "Net first": size(memory.net_first, signed=True),
            # only some devices may have a recording
            "Backward": "" if memory.backward is None else size(memory.backward),
        }


@dataclass(frozen=True, slots=True)
class _BarScales:
    """The scales of the bars, in bytes per device.

    A device's peaks are measured against its highest; its nets start from an axis that leaves
    room to the left for the largest release and to the right for the largest growth.
    """

    peaks: Mapping[str, int]
    growths: Mapping[str, int]
    releases: Mapping[str, int]

    @classmethod
    def of_functions(cls, functions: Sequence[FunctionLayout]) -> _BarScales:
        peaks: dict[str, int] = {}
        growths: dict[str, int] = {}
        releases: dict[str, int] = {}
        for entry in (entry for function in functions for entry in function.entries):
            net = entry.memory.net or 0
            for name in entry.devices:
                peaks[name] = max(peaks.get(name, 0), entry.memory.peak or 0)
                growths[name] = max(growths.get(name, 0), net)
                releases[name] = max(releases.get(name, 0), -net)
        return cls(peaks, growths, releases)

    def peak(self, entry: Entry) -> tuple[float, float]:
        """Return where the bar of a peak begins and ends."""
        highest = self.peaks[entry.devices[0]]
        return 0.0, (entry.memory.peak or 0) / highest if highest else 0.0

    def net(self, entry: Entry) -> tuple[float, float]:
        """Return where the bar of a net begins and ends."""
        name = entry.devices[0]
        released, whole = self.releases[name], self.releases[name] + self.growths[name]
        begin, end = sorted((released, released + (entry.memory.net or 0)))
        return (begin / whole, end / whole) if whole else (0.0, 0.0)
