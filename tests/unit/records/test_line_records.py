import json
import sys
from typing import Any

import pytest

from tensorlens import LineReport
from tensorlens.errors import FileFormatError
from tensorlens.lines import DeviceSource, FunctionLines, Line, LineMemory

REPORT = LineReport(
    functions=(
        FunctionLines(
            name="f",
            qualname="Net.f",
            module="net",
            filename="/tmp/\udcff net.py",
            first_line=3,
            calls=2,
            lines=(
                Line(3, "def f(x):\x1b[31m"),
                Line(
                    4,
                    "    return x * 2  # 記憶體",
                    hits=2,
                    time_ns=2**53 + 1,
                    memory={"cpu": LineMemory(2**63, 2**63, None, -5, 0, None)},
                    raised="ValueError: no\nmore",
                ),
            ),
            note="compiled away",
        ),
    ),
    devices=(DeviceSource("cpu", "resident set", "to the page", {"reserved": "why"}),),
    provenance="measured",
    process="process 4711 (SpawnProcess-1)",
    notes=("one", "two"),
)


@pytest.mark.parametrize("report", [LineReport((), ()), REPORT])
def test_a_report_reads_back_equal(report: LineReport) -> None:
    assert LineReport.from_json(report.to_json()) == report
    assert LineReport.from_dict(report.to_dict()) == report


def test_rise_and_growth_are_read_back() -> None:
    memory = {"cpu": LineMemory(3, 3, 3, 3, 3, 3, rise=2, growth=1), "mps": LineMemory(*[0] * 6)}
    report = LineReport(
        (FunctionLines("f", "f", "m", "f.py", 1, 1, (Line(1, "", 1, 1, memory),)),), ()
    )
    (function,) = LineReport.from_json(report.to_json()).functions
    again = function.lines[0].memory
    assert [(each.rise, each.growth) for each in again.values()] == [(2, 1), (None, None)]
    assert "rise" not in report.to_dict()["functions"][0]["lines"][0]["memory"]["mps"]


def test_json_names_its_schema_and_holds_exact_integers() -> None:
    data = json.loads(REPORT.to_json())
    assert (data["schema"], data["version"]) == ("tensorlens.lines", 1)
    line = data["functions"][0]["lines"][1]
    assert line["time_ns"] == 2**53 + 1
    assert line["memory"] == {
        "cpu": {
            "allocated": 2**63,
            "peak": 2**63,
            "reserved": None,
            "net": -5,
            "net_max": 0,
            "net_first": None,
        }
    }


@pytest.mark.parametrize("text", ["", "{", "hello", "\x00", "[" * 100_000])
def test_line_report_without_json_is_refused(text: str) -> None:
    with pytest.raises(FileFormatError, match="it is not JSON"):
        LineReport.from_json(text)


@pytest.mark.parametrize("data", [None, 3, [], {}, {"schema": "other"}, "tensorlens.lines"])
def test_other_json_is_refused(data: Any) -> None:
    with pytest.raises(FileFormatError, match="not a tensorlens line report"):
        LineReport.from_dict(data)


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(FileFormatError, match="version 2; this tensorlens reads 1"):
        LineReport.from_dict({**REPORT.to_dict(), "version": 2})


@pytest.mark.parametrize(
    "damage",
    [
        {"functions": 3},
        {"functions": [3]},
        {"functions": [{}]},
        {"functions": [{"lines": [{"memory": []}]}]},
        {"devices": [{"name": "cpu"}]},
        {"notes": None},
    ],
)
def test_a_damaged_report_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(FileFormatError, match="damaged line report"):
        LineReport.from_dict({**REPORT.to_dict(), **damage})


def test_a_report_shows_itself_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(REPORT).startswith("Memory per line, process 4711 (SpawnProcess-1)\n")
    assert REPORT._repr_html_().startswith('<div class="tensorlens">')
    assert REPORT.to_csv().startswith("function,module,filename,lineno,")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^to_pandas\(\) needs pandas: pip install"):
        REPORT.to_pandas()
