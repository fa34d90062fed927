"""Line reports as rows: one per function, line and device.

A line that never ran has one row without device and figures; a figure that could not be had is
None. There is a column for backward where a recording was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorlens.lines.report import FunctionLines, Line, LineReport

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


def columns(report: LineReport) -> tuple[str, ...]:
    """Return the columns of a report: :data:`COLUMNS`, and ``backward`` where it is known.

    Where graphs were followed there is ``execution`` as well; see
    :class:`tensorlens.lines.report.FunctionLines`.
    """
    found = (*COLUMNS[:-1], "backward", "raised") if report.has_backward else COLUMNS
    return (*found, "execution") if _has_graphs(report) else found


def rows(report: LineReport) -> Iterator[tuple[str | int | None, ...]]:
    """Yield the values of :func:`columns` for every function, line and device."""
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
