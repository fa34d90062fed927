"""What lines took in backward: shown where a recording was, and nowhere else."""

import csv
import io
import json

import pytest

from tensorlens import LineReport
from tensorlens.lines import DeviceSource, FunctionLines, Line, LineMemory, ResidentLine, present
from tensorlens.render import TextRenderer, csv_text, html_page, to_pandas

MIB = 1024**2


def report(*backward, device="cpu", hits=1):
    """A function whose lines 2, 3, ... took so much in backward; line 1 never ran."""
    lines = [Line(1, "def step():")]
    for number, nbytes in enumerate(backward, 2):
        figures = LineMemory(MIB, 2 * MIB, 9 * MIB, 0, 0, 0, nbytes)
        lines.append(Line(number, f"    x = f{number}(x)", hits, 1000, {device: figures}))
    function = FunctionLines("step", "step", "m", "m.py", 1, 1, tuple(lines))
    return LineReport((function,), (DeviceSource(device, "counter", "exact"),))


RECORDED = report(3 * MIB, 0, 512)
NOT_RECORDED = report(None, None)


def test_backward_text():
    lines = TextRenderer(120, "utf-8").render(RECORDED).splitlines()
    titles = next(line for line in lines if line.startswith("Line"))
    assert titles.split()[-3:] == ["Backward", "│", "Source"]
    end = titles.index("Backward") + len("Backward")
    shown = [line[:end].split("  ")[-1].strip() for line in lines if "│     x = f" in line]
    assert shown == ["3.00 MiB", "0 B", "512 B"]
    assert "Backward" not in TextRenderer(120, "utf-8").render(NOT_RECORDED)


def test_text_that_is_narrow_keeps_it_as_long_as_it_can():
    text = TextRenderer(80, "utf-8").render(RECORDED)
    assert "Backward" in text and max(map(len, text.splitlines())) <= 80
    narrow = TextRenderer(40, "utf-8").render(RECORDED)
    assert "Left out to fit 40" in narrow and "Backward" in narrow.split("Left out")[1]


def test_backward_html():
    page = html_page(RECORDED)
    assert page.count(">Backward</th>") == 1
    row = next(line for line in page.split("<tr") if "<pre>    x = f2(x)" in line)
    assert row.count("<td") == page.split("</thead>")[0].split("<thead>")[1].count("<th ") == 9
    assert ">3.00 MiB</td>" in row
    idle = next(line for line in page.split("<tr") if "def step" in line)
    assert idle.count("<td") == 9
    assert "Backward" not in html_page(NOT_RECORDED)


def test_the_parts_of_a_peak_in_backward_add_up_to_it():
    kept = (ResidentLine("m.py", 1, "step", 3 * MIB), ResidentLine("m.py", 2, "step", 2 * MIB))
    memory = LineMemory(MIB, 20 * MIB, 9 * MIB, 0, 0, 0, None, rise=4 * MIB, residents=kept)
    line = Line(3, "    loss.backward()", 1, 1000, {"cpu": memory})
    function = FunctionLines("step", "step", "m", "m.py", 1, 1, (line,))
    found = LineReport((function,), (DeviceSource("cpu", "counter", "exact"),))
    text = TextRenderer(120, "utf-8").render(found)
    assert "of this    4.00 MiB taken by the backward pass" in text
    # 20 - 4 - 3 - 2
    assert "             11.00 MiB more: weights, optimizer states, other lines\n" in text


def test_csv_and_pandas():
    header, *rows = csv.reader(io.StringIO(csv_text(RECORDED), newline=""))
    assert tuple(header) == (*present.COLUMNS[:-1], "backward", "raised")
    assert [row[header.index("backward")] for row in rows] == ["", str(3 * MIB), "0", "512"]
    header, *_ = csv.reader(io.StringIO(csv_text(NOT_RECORDED), newline=""))
    assert tuple(header) == present.COLUMNS
    pandas = pytest.importorskip("pandas")
    frame = to_pandas(RECORDED)
    assert frame["backward"].dtype == "Int64"
    assert frame["backward"].dropna().tolist() == [3 * MIB, 0, 512]
    assert pandas.isna(frame["backward"][0])
    assert "backward" not in to_pandas(NOT_RECORDED)


def test_json_reads_back_equal_and_what_was_written_before_there_were_recordings_too():
    assert LineReport.from_json(RECORDED.to_json()) == RECORDED
    data = json.loads(NOT_RECORDED.to_json())
    assert all(
        "backward" not in line["memory"]["cpu"]
        for line in data["functions"][0]["lines"]
        if line["memory"]
    )
    assert LineReport.from_json(json.dumps(data)) == NOT_RECORDED


def test_a_device_without_a_recording_beside_one_with():
    lines = report(MIB).functions[0].lines
    memory = {**lines[1].memory, "cuda:0": LineMemory(5, 7, 9, 1, 1, 1)}
    line = Line(2, "x = f(x)", 1, 1000, memory)
    function = FunctionLines("step", "step", "m", "m.py", 1, 1, (line,))
    sources = tuple(DeviceSource(name, "counter", "exact") for name in memory)
    both = LineReport((function,), sources)
    text = TextRenderer(120, "utf-8").render(both)
    titles, first, second = [line for line in text.splitlines() if "│" in line]
    end = titles.index("Backward") + len("Backward")
    start = end - len("1.00 MiB")
    assert (first[start:end], second[start:end].strip()) == ("1.00 MiB", "")
    header, one, other = csv.reader(io.StringIO(csv_text(both), newline=""))
    place = header.index("backward")
    assert (one[place], other[place]) == (str(MIB), "")


def test_a_line_that_only_backward_is_known_of_is_no_unchanged_one():
    # with several devices, those that a line did not move are left out
    quiet = LineMemory(5, 5, 9, 0, 0, 0)
    line = Line(2, "x = f(x)", 1, 1000, {"cpu": LineMemory(5, 5, 9, 0, 0, 0, 64), "cuda:0": quiet})
    function = FunctionLines("step", "step", "m", "m.py", 1, 1, (line,))
    sources = (DeviceSource("cpu", "counter", "exact"), DeviceSource("cuda:0", "other", "exact"))
    text = TextRenderer(120, "utf-8").render(LineReport((function,), sources))
    assert "64 B" in text and "cuda:0: unchanged at 5 B" in text
