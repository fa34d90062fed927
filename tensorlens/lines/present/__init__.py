"""The presenter of line reports.

Rows are one per function, line and device; a line that never ran has one row without figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tensorlens.lines.present.function_tables import about_graphs, function_columns, function_tables
from tensorlens.lines.present.layout import FunctionLayout, devices_of, layouts
from tensorlens.lines.present.overview import LineFigures, Overview, by_peak, overview
from tensorlens.lines.report import Ending, LineReport
from tensorlens.render.blocks import (
    Block,
    Fact,
    Heading,
    KeyValues,
    Named,
    Note,
    Rows,
    Section,
    labelled,
)
from tensorlens.render.figures import device_names, device_sources, size
from tensorlens.render.shown import View
from tensorlens.render.source import place

_MAX_RESIDENTS = 3
"""Lines listed as resident when a backward pass began."""
_EARLY_END = "what stayed is judged without the last hit of each line: its step may not have ended"

TEXT = ("function", "module", "filename", "source", "device", "raised", "execution")
"""Columns of text among :data:`COLUMNS`."""

_FIGURES = ("allocated", "peak", "reserved", "net", "net_max", "net_first")
COLUMNS = (
    "function",
    "module",
    "filename",
    "lineno",
    "source",
    "hits",
    "time_ns",
    "device",
    *_FIGURES,
    "raised",
)
"""The columns in order; the figures after ``device`` are bytes."""

TITLE = "memory per line"


def blocks(report: LineReport, view: View) -> Sequence[Block]:
    """Return the peak, the lines to look at first, and a table for each function by its peak."""
    functions = layouts(report)
    several = len(devices_of(report)) > 1
    run = by_peak(each for each in functions if each.body and not each.is_of_graphs)
    traced = by_peak(each for each in functions if each.body and each.is_of_graphs)
    uncalled = (each for each in functions if not each.body)
    never = tuple(Section((), each.title, asides=(each.place, *each.remarks)) for each in uncalled)
    main = overview(run)
    shown: list[Block] = [_header(report, functions, main)]
    if run:
        columns = function_columns(run, several=several)
        shown += function_tables(run, main, columns, "code", view)
    if traced:
        columns = function_columns(traced, several=several, of_graphs=True)
        shown += [
            about_graphs(columns),
            *function_tables(traced, overview(traced), columns, "graph", view),
        ]
    return [*shown, Section(never)]


def _header(report: LineReport, functions: Sequence[FunctionLayout], main: Overview) -> Section:
    sources = device_sources((each.name, each.source, each.precision) for each in report.devices)
    devices = [Named(*each) for each in sources]
    peaks = tuple(
        Fact(
            "" if number else "peak",
            Named(device_names(each.entry.devices), f"{size(each.peak)} at {each.text}"),
            each.row.source,
        )
        for number, each in enumerate(main.peaks)
    )
    parts = tuple(part for each in main.peaks for part in _peak_parts(each, report))
    facts = KeyValues((*peaks, *parts, *labelled("counter" if peaks else "", devices)))
    title = "Memory per line" + (f": {ending_text(report.ending)}" if report.ending else "")
    nothing = () if functions else (Note("no function was profiled"),)
    return Section(
        (
            Heading(title, report.provenance, report.process),
            facts,
            *((Note(_EARLY_END, label="note"),) if report.ending else ()),
            *(Note(note, label="note") for note in report.notes),
            *nothing,
        )
    )


def ending_text(ending: Ending) -> str:
    """Return ``SIGTERM ended the program at train.py:305``."""
    where = f" at {place(ending.line)}" if ending.line else ""
    return f"{ending.cause} ended the program{where}"


def _peak_parts(peak: LineFigures, report: LineReport) -> Iterator[Fact]:
    """Yield the parts of a backward pass's peak: its own bytes, the lines that left most, the rest.

    Other lines may have freed some of the bytes counted here: then there is no rest.
    """
    memory = peak.entry.memory
    residents = (memory.residents or ())[:_MAX_RESIDENTS]
    if not residents:
        return
    lines = {
        (function.filename, line.lineno): (function.qualname, line.source.strip())
        for function in report.functions
        for line in function.lines
    }
    yield Fact("of this", f"{size(memory.rise)} taken by the backward pass: gradients, scratch")
    for number, each in enumerate(residents):
        name, source = lines.get((each.filename, each.lineno), (each.function, ""))
        where = place(replace(each, function=name), function=True)
        label = "" if number else "before it"
        yield Fact(label, f"{size(each.nbytes)} left by {where}", source)
    rest = peak.peak - (memory.rise or 0) - sum(each.nbytes for each in residents)
    if rest > 0:
        yield Fact("", f"{size(rest)} more: weights, optimizer states, other lines")


def rows(report: LineReport) -> Rows:
    """Return one row per function, line and device.

    ``backward`` is a column if there was a recording, ``execution`` if there are graphs; see
    :class:`tensorlens.lines.report.FunctionLines`.
    """
    figures = (*_FIGURES, *(("backward",) if report.has_backward else ()))
    has_graphs = any(function.execution != "lines" for function in report.functions)
    columns = (*COLUMNS[:-1], *figures[len(_FIGURES) :], "raised")
    columns = (*columns, "execution") if has_graphs else columns
    return Rows(columns, _rows(report, figures, has_graphs=has_graphs), TEXT)


def _rows(
    report: LineReport, figures: Sequence[str], *, has_graphs: bool
) -> Iterator[tuple[str | int | None, ...]]:
    for function in report.functions:
        names = (function.qualname, function.module, function.filename)
        for line in function.lines:
            start = (*names, line.lineno, line.source, line.hits, line.time_ns)
            end = (line.raised, *((function.execution,) if has_graphs else ()))
            if not line.memory:
                yield (*start, None, *(None for _ in figures), *end)
            for device, memory in line.memory.items():
                yield (*start, device, *(getattr(memory, name) for name in figures), *end)
