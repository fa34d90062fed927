"""Reports as flat tables: CSV text and a pandas DataFrame, sizes in exact bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tensorlens.records.comparisons import Comparison
from tensorlens.records.differences import Difference
from tensorlens.records.estimates import Estimate
from tensorlens.records.leaks import LeakReport
from tensorlens.records.plans import Plan
from tensorlens.records.queues import Queue
from tensorlens.records.recordings import Recording
from tensorlens.records.snapshots import Snapshot
from tensorlens.records.suggestions import Suggestions
from tensorlens.render.source import spreadsheet_text
from tensorlens.render.table import (
    comparisons,
    estimates,
    leaks,
    lines,
    queues,
    recording,
    suggestions,
    tensors,
)

if TYPE_CHECKING:
    import pandas

    from tensorlens.records.loading import Record

COLUMNS = lines.COLUMNS
"""The columns of a line report without backward."""


class CsvRenderer:
    """A header row and the rows of a record, as RFC 4180 has it.

    A line report has one row per function, line and device; a snapshot one per tensor; a
    difference one per change; a recording one per event; a leak report one per leak; an estimate
    one per figure; an input queue one for the whole, one per part and one per worker; a plan one
    per batch size and shape; a comparison one per option; suggestions one per change.
    What could not be had is empty. Text is made printable, one line each; where a spreadsheet
    would take it for a formula, an apostrophe comes first.
    """

    extension = "csv"

    def render(self, record: Record) -> str:
        """Return the table with its header row; rows end in CR LF."""
        columns, _, rows = _table(record)
        text = io.StringIO()
        # with a bare \n the csv module of Python 3.11 leaves a \r inside a field unquoted
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow(columns)
        cells: dict[str, str] = {}
        writer.writerows([_cell(value, cells) for value in row] for row in rows)
        return text.getvalue()


def _cell(value: Any, cells: dict[str, str]) -> Any:
    """Return what stands for a value; ``cells`` has the texts that were met before."""
    if not isinstance(value, str):
        return value
    found = cells.get(value)
    if found is None:
        found = cells[value] = spreadsheet_text(value)
    return found


def to_pandas(record: Record) -> pandas.DataFrame:
    """Return the same rows as a DataFrame: whole numbers and strings, ``<NA>`` for blanks.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise ImportError("to_pandas() needs pandas: pip install 'tensorlens[pandas]'") from None
    columns, texts, rows = _table(record)
    values = dict(zip(columns, zip(*rows, strict=True), strict=False))
    kinds = {
        "storage": "UInt64",
        "address": "UInt64",
        **dict.fromkeys((*leaks.NUMBERS, *comparisons.NUMBERS, *suggestions.NUMBERS), "Float64"),
        **dict.fromkeys(texts, "string"),
    }
    return pandas.DataFrame(
        {
            name: pandas.array(list(values.get(name, ())), dtype=kinds.get(name, "Int64"))
            for name in columns
        }
    )


def _table(record: Record) -> tuple[Sequence[str], Sequence[str], Iterable[tuple[Any, ...]]]:
    """Return the columns, those of them that are text, and the rows."""
    if isinstance(record, Snapshot):
        return tensors.COLUMNS, tensors.TEXT, tensors.rows(record.tensors)
    if isinstance(record, Difference):
        return tensors.CHANGE_COLUMNS, tensors.CHANGE_TEXT, tensors.change_rows(record)
    if isinstance(record, Recording):
        return recording.COLUMNS, recording.TEXT, recording.rows(record)
    if isinstance(record, LeakReport):
        return leaks.COLUMNS, leaks.TEXT, leaks.rows(record)
    if isinstance(record, Estimate):
        return estimates.COLUMNS, estimates.TEXT, estimates.rows(record)
    if isinstance(record, Queue):
        return queues.COLUMNS, queues.TEXT, queues.rows(record)
    if isinstance(record, Plan):
        return queues.PLAN_COLUMNS, queues.PLAN_TEXT, queues.plan_rows(record)
    if isinstance(record, Comparison):
        return comparisons.COLUMNS, comparisons.TEXT, comparisons.rows(record)
    if isinstance(record, Suggestions):
        return suggestions.COLUMNS, suggestions.TEXT, suggestions.rows(record)
    return lines.columns(record), lines.TEXT, lines.rows(record)
