"""Reports as flat tables: CSV text and a pandas DataFrame, sizes in exact bytes."""

from __future__ import annotations

import csv
import io
from functools import cache
from typing import TYPE_CHECKING

from tensorlens.render.shown import permitted
from tensorlens.render.source import spreadsheet_text

if TYPE_CHECKING:
    import pandas

    from tensorlens.render.shown import Shown


def csv_text(record: Shown) -> str:
    """Return a header row and the rows of a record as RFC 4180 says; rows end in CR LF.

    A line report has one row per function, line and device; a snapshot one per tensor; a
    difference one per change; a recording one per event; a leak report one per leak; an estimate
    one per figure; an input queue one for the whole, one per part and one per worker; a plan one
    per batch size and shape; a comparison one per option; suggestions one per change.
    Unknown values are empty. Text is made printable, one line each, after an apostrophe if a
    spreadsheet would take it for a formula.
    """
    record = permitted(record)
    table = record.presenter().rows(record)
    text = io.StringIO()
    # with a bare \n the csv module of Python 3.11 leaves a \r inside a field unquoted
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(table.columns)
    cell = cache(spreadsheet_text)
    writer.writerows(
        [cell(each) if isinstance(each, str) else each for each in row] for row in table.rows
    )
    return text.getvalue()


def to_pandas(record: Shown) -> pandas.DataFrame:
    """Return the rows of CSV as a DataFrame, texts unchanged and ``<NA>`` for unknown values.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise ImportError("to_pandas() needs pandas: pip install 'tensorlens[pandas]'") from None
    record = permitted(record)
    table = record.presenter().rows(record)
    values = dict(zip(table.columns, zip(*table.rows, strict=True), strict=False))
    kinds = {
        **dict.fromkeys(table.unsigned, "UInt64"),
        **dict.fromkeys(table.fractions, "Float64"),
        **dict.fromkeys(table.texts, "string"),
    }
    return pandas.DataFrame(
        {
            name: pandas.array(list(values.get(name, ())), dtype=kinds.get(name, "Int64"))
            for name in table.columns
        }
    )
