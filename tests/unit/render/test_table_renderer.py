import csv
import io
import subprocess
import sys
from typing import Any

import pytest
import rendered_reports as reports

from tensorlens import LineReport
from tensorlens.lines import present
from tensorlens.render import csv_text, spreadsheet_text, to_pandas


def read_back(report: LineReport) -> list[dict[str, str]]:
    text = csv_text(report)
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    assert tuple(header) == present.COLUMNS
    return [dict(zip(header, row, strict=True)) for row in rows]


def expected_rows(report: LineReport) -> list[dict[str, Any]]:
    rows = []
    for function in report.functions:
        for line in function.lines:
            for device, memory in line.memory.items() or [(None, None)]:
                row = {
                    "function": function.qualname,
                    "module": function.module,
                    "filename": function.filename,
                    "lineno": line.lineno,
                    "source": line.source,
                    "hits": line.hits,
                    "time_ns": line.time_ns,
                    "device": device,
                    "raised": line.raised,
                }
                for name in ("allocated", "peak", "reserved", "net", "net_max", "net_first"):
                    row[name] = None if memory is None else getattr(memory, name)
                rows.append(row)
    return rows


def as_text(value: Any) -> str:
    return "" if value is None else spreadsheet_text(str(value))


@pytest.mark.parametrize("kind", reports.KINDS)
def test_csv_gives_back_every_value(kind: str) -> None:
    report = reports.KINDS[kind]()
    wanted = [{key: as_text(row[key]) for key in present.COLUMNS} for row in expected_rows(report)]
    assert read_back(report) == wanted


def test_csv_text() -> None:
    assert csv_text(reports.one_line()) == (
        "function,module,filename,lineno,source,hits,time_ns,device,"
        "allocated,peak,reserved,net,net_max,net_first,raised\r\n"
        'Net.forward,net,net.py,7,"    def forward(self, x):",0,0,,,,,,,,\r\n'
        "Net.forward,net,net.py,8,        return x + x,1,1000000,cpu,"
        "2097152,2097152,314572800,1048576,1048576,1048576,\r\n"
    )


def test_eight_devices_have_a_row_each() -> None:
    rows = read_back(reports.eight_devices())
    assert [row["device"] for row in rows if row["lineno"] == "42"] == [
        "cuda:0",
        "cuda:1",
        *(f"cuda:{index}" for index in range(2, 7)),
        "cpu",
        "cuda:7",
    ]


@pytest.mark.parametrize("kind", reports.KINDS)
def test_pandas_has_the_same_values(kind: str) -> None:
    pytest.importorskip("pandas")
    report = reports.KINDS[kind]()
    frame = to_pandas(report)
    assert tuple(frame.columns) == present.COLUMNS
    for name in present.COLUMNS:
        text = name in {"function", "module", "filename", "source", "device", "raised"}
        assert str(frame[name].dtype) == ("string" if text else "Int64")
    values = frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert values == expected_rows(report)


def test_without_pandas_the_error_says_what_to_install() -> None:
    code = """if True:
        import sys
        sys.modules["pandas"] = None
        from tensorlens import LineReport
        try:
            LineReport((), ()).to_pandas()
        except ImportError as error:
            print(error)
    """
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert printed.stdout == "to_pandas() needs pandas: pip install 'tensorlens[pandas]'\n"
