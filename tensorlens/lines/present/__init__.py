"""Presents a line report.

As rows it is one per function, line and device: a line that never ran has one without device and
figures, and there is a column for backward where a recording was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.lines.present import function_tables
from tensorlens.lines.report import FunctionLines, Line, LineReport
from tensorlens.render.blocks import Rows

TEXT = ("function", "module", "filename", "source", "device", "raised", "execution")
"""The columns of :data:`COLUMNS` that are text."""

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
"""The columns in order; ``time_ns`` is nanoseconds and the figures after ``device`` are bytes."""

TITLE = "memory per line"
blocks = function_tables.report


def rows(report: LineReport) -> Rows:
    """Return one row per function, line and device."""
    return Rows(_columns(report), _rows(report), TEXT)


def _columns(report: LineReport) -> tuple[str, ...]:
    """Return the columns of a report: :data:`COLUMNS`, and ``backward`` where it is known.

    Where graphs were followed there is ``execution`` as well; see
    :class:`tensorlens.lines.report.FunctionLines`.
    """
    found = (*COLUMNS[:-1], "backward", "raised") if report.has_backward else COLUMNS
    return (*found, "execution") if _has_graphs(report) else found


def _rows(report: LineReport) -> Iterator[tuple[str | int | None, ...]]:
    """Yield the values of the columns for every function, line and device."""
    figures = (*_FIGURES, "backward") if report.has_backward else _FIGURES
    for function in report.functions:
        rest = (function.execution,) if _has_graphs(report) else ()
        for line in function.lines:
            for row in _line_rows(function, line, figures):
                yield (*row, *rest)


def _has_graphs(report: LineReport) -> bool:
    return any(function.execution != "lines" for function in report.functions)


def _line_rows(
    function: FunctionLines, line: Line, figures: Sequence[str]
) -> Iterator[tuple[str | int | None, ...]]:
    where = (function.qualname, function.module, function.filename, line.lineno, line.source)
    start = (*where, line.hits, line.time_ns)
    if not line.memory:
        yield (*start, None, *(None for _ in figures), line.raised)
    for device, memory in line.memory.items():
        yield (*start, device, *(getattr(memory, name) for name in figures), line.raised)
