"""Reports as flat tables: CSV text and a pandas DataFrame, sizes in exact bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

    from tensorlens.records.lines import FunctionLines, Line, LineReport

_TEXT = ("function", "module", "filename", "source", "device", "raised")
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

Value = str | int | None


class CsvRenderer:
    """One row per function, line and device, as RFC 4180 has it.

    A line that never ran has one row without device and figures; a figure that could not be had
    is empty. Text is written as it is, so ``csv.reader`` gives back the very source.
    """

    extension = "csv"

    def render(self, report: LineReport) -> str:
        """Return the table with its header row; rows end in CR LF."""
        text = io.StringIO()
        # with a bare \n the csv module of Python 3.11 leaves a \r inside a field unquoted
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows(report))
        return text.getvalue()


def rows(report: LineReport) -> Iterator[tuple[Value, ...]]:
    """Yield the values of :data:`COLUMNS` for every function, line and device."""
    for function in report.functions:
        for line in function.lines:
            yield from _line_rows(function, line)


def _line_rows(function: FunctionLines, line: Line) -> Iterator[tuple[Value, ...]]:
    where = (function.qualname, function.module, function.filename, line.lineno, line.source)
    start = (*where, line.hits, line.time_ns)
    if not line.memory:
        yield (*start, None, *(None for _ in _FIGURES), line.raised)
    for device, memory in line.memory.items():
        yield (*start, device, *(getattr(memory, name) for name in _FIGURES), line.raised)


def to_pandas(report: LineReport) -> pandas.DataFrame:
    """Return the same rows as a DataFrame: ``Int64`` and ``string`` columns, ``<NA>`` for blanks.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise ImportError("to_pandas() needs pandas: pip install 'tensorlens[pandas]'") from None
    columns = zip(*rows(report), strict=True) if report.functions else iter(())
    values = dict(zip(COLUMNS, columns, strict=False))
    return pandas.DataFrame(
        {
            name: pandas.array(
                list(values.get(name, ())), dtype="string" if name in _TEXT else "Int64"
            )
            for name in COLUMNS
        }
    )
