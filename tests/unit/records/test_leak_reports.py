import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "render"))

import rendered_leaks as leaks

from tensorlens import LeakReport, load
from tensorlens.errors import FileFormatError
from tensorlens.leaks import LeakKind
from tensorlens.loading import parse


@pytest.mark.parametrize("kind", leaks.KINDS)
def test_json_gives_back_an_equal_report(kind: str, tmp_path: Path) -> None:
    report = leaks.KINDS[kind]()
    assert LeakReport.from_json(report.to_json()) == report
    file = tmp_path / "leaks.json"
    file.write_text(report.to_json())
    assert load(file) == report


def test_a_file_of_before_a_field_was_added_is_read() -> None:
    data = leaks.KINDS["leak"]().to_dict()
    for name in ("stride", "balance"):
        del data[name]
    for leak in data["leaks"]:
        for name in ("source", "kind", "below"):
            del leak[name]
    report = LeakReport.from_dict(data)
    leak = report.leaks[0]
    assert (leak.source, leak.kind, leak.below) == ("", LeakKind.LEAK, ())
    assert (report.stride, report.balance) == (1, {})


def test_fields_of_a_newer_tensorlens_are_passed_over() -> None:
    data = leaks.KINDS["leak"]().to_dict()
    data["more"] = data["leaks"][0]["more"] = 1
    assert LeakReport.from_dict(data) == leaks.KINDS["leak"]()


def _set(*keys, value):
    def change(data):
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_set("version", value=2), "leak report of version 2; this tensorlens reads 1"),
        (_set("schema", value="x"), "not a tensorlens leak report"),
        (_set("leaks", value=None), "damaged leak report: "),
        (_set("leaks", 0, value=[]), "damaged leak report: list in place of a dict"),
        (_set("leaks", 0, "kind", value="drip"), "'drip' is not a valid LeakKind"),
        (_set("allocated", value=[]), "damaged leak report: "),
    ],
)
def test_damaged_leak_report_is_one_line(change, complaint: str) -> None:
    data = json.loads(leaks.KINDS["leak"]().to_json())
    change(data)
    with pytest.raises(FileFormatError) as error:
        LeakReport.from_dict(data)
    assert complaint in str(error.value) and "\n" not in str(error.value)


def test_a_missing_field_is_damage() -> None:
    data = leaks.KINDS["leak"]().to_dict()
    del data["verdict"]
    with pytest.raises(FileFormatError, match="damaged leak report: the field verdict is missing"):
        parse(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[", "[]", "3", '{"schema": "tensorlens.lines"}'])
def test_other_file_is_no_leak_report(text: str) -> None:
    with pytest.raises(FileFormatError, match=r"^not a tensorlens leak report"):
        LeakReport.from_json(text)
