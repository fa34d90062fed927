"""Line reports as rows: one per function, line and device.

A line that never ran has one row without device and figures; a figure that could not be had is
None. There is a column for backward where a recording was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorlens.records.lines import FunctionLines, Line, LineReport

TEXT = ("function", "module", "filename", "source", "device", "raised")
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
    """Return the columns of a report: :data:`COLUMNS`, and ``backward`` where it is known."""
    return (*COLUMNS[:-1], "backward", "raised") if report.has_backward else COLUMNS


def rows(report: LineReport) -> Iterator[tuple[str | int | None, ...]]:
    """Yield the values of :func:`columns` for every function, line and device."""
    figures = (*_FIGURES, "backward") if report.has_backward else _FIGURES
    for function in report.functions:
        for line in function.lines:
            yield from _line_rows(function, line, figures)


def _line_rows(
    function: FunctionLines, line: Line, figures: Sequence[str]
) -> Iterator[tuple[str | int | None, ...]]:
    where = (function.qualname, function.module, function.filename, line.lineno, line.source)
    start = (*where, line.hits, line.time_ns)
    if not line.memory:
        yield (*start, None, *(None for _ in figures), line.raised)
    for device, memory in line.memory.items():
        yield (*start, device, *(getattr(memory, name) for name in figures), line.raised)
