"""Names that a terminal, a viewer or a spreadsheet would obey, in every format of text."""

import csv
import io
import json
from dataclasses import replace

import pytest
import rendered_estimates
import rendered_leaks
import rendered_recordings
import rendered_reports
import rendered_snapshots

from tensorlens import Recording
from tensorlens.records import ALLOC, EventLog, Frame, Mark, Origin
from tensorlens.render import file_content, spreadsheet_text

NAME = "=cmd|'/c calc'!A1\x1b[31m\x9b2J\x1b]0;title\x07\u202egnp\u2066.\r\n\x00py"


def recording():
    log = EventLog()
    stack = log.stacks.push(-1, Frame(f"/me/{NAME}", 3, NAME))
    log.append(ALLOC, NAME, 0, 1000, 0, stack)
    log.marks.append(Mark(NAME, 0, 1))
    return Recording(log, Origin(process=NAME))


def line_report():
    report = rendered_reports.hostile()
    functions = (replace(each, qualname=NAME, filename=NAME) for each in report.functions)
    return replace(report, functions=tuple(functions), process=NAME)


RECORDS = {
    "recording": recording(),
    "another recording": rendered_recordings.hostile(),
    "lines": line_report(),
    "snapshot": rendered_snapshots.hostile(),
    "leaks": rendered_leaks.hostile(),
    "estimate": rendered_estimates.hostile(),
}
ENDINGS = ("csv", "txt", "html", "json")
RECORDING_ENDINGS = ("folded", "speedscope.json", "perfetto.json")
CASES = [(name, ending) for name in RECORDS for ending in ENDINGS]
CASES += [(name, ending) for name in RECORDS if "recording" in name for ending in RECORDING_ENDINGS]


@pytest.mark.parametrize(("name", "ending"), CASES)
def test_nothing_in_a_file_of_text_is_obeyed(name, ending):
    text = file_content(RECORDS[name], ending)
    assert isinstance(text, str)
    wrong = {each for each in text if not each.isprintable()} - {"\n", "\r"}
    # the library of charts that a page brings along has some of its own
    assert not (wrong & set(NAME) if ending == "html" else wrong)
    if ending in ("txt", "folded"):
        assert "\r" not in text


@pytest.mark.parametrize("ending", ["speedscope.json", "perfetto.json"])
def test_nothing_in_a_viewers_names_is_obeyed(ending):
    def texts(each):
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            yield from (text for value in each.values() for text in texts(value))
        elif isinstance(each, list):
            yield from (text for value in each for text in texts(value))

    data = json.loads(file_content(recording(), ending))
    assert all(text.isprintable() for text in texts(data))


@pytest.mark.parametrize("name", RECORDS)
def test_no_cell_is_a_formula(name):
    text = file_content(RECORDS[name], "csv")
    cells = {cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row if cell}
    dangerous = {cell for cell in cells if cell[0] in "=+@-\t\r"}
    assert all(float(cell) for cell in dangerous)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("=1+1", "'=1+1"),
        ("+1+1", "'+1+1"),
        ("-1+1", "'-1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\x1b[1m=1", "'=1"),
        ("-1", "-1"),
        ("+1.5e-3", "+1.5e-3"),
        ("-.5", "-.5"),
        ("    @decorator", "    @decorator"),
        ("a = b", "a = b"),
        ("", ""),
    ],
)
def test_formulas_are_text_and_numbers_are_numbers(text, shown):
    assert spreadsheet_text(text) == shown
