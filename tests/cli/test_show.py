"""``tensorlens show``: the same table again, other formats, and files that are no reports."""

import json
import os
import subprocess
import sys

import pytest
from commands import environment, own_lines, tensorlens
from saved_snapshots import AFTER, write

from tensorlens import LineReport
from tensorlens.lines import DeviceSource, FunctionLines, Line, LineMemory

CPU = LineMemory(4000, 4000, 8192, 4000, 4000, 4000)
REPORT = LineReport(
    functions=(
        FunctionLines(
            *("step", "step", "train", "train.py", 1, 1),
            lines=(Line(1, "def step():"), Line(2, "    a = ones(1000)", 1, 1500, {"cpu": CPU})),
        ),
    ),
    devices=(DeviceSource("cpu", "counting allocator", "exact"),),
)
TABLE = """\
Memory per line
  peak       cpu  3.91 KiB at train.py:2 in step
               a = ones(1000)
  counter    cpu  counting allocator, exact

▲ highest peak   ● most that stayed
Net sum: what a line left, all hits added; other lines may free it.

step  train.py:1  1 call  peak 3.91 KiB
Line  Hits     Time  Allocated        Peak  Reserved      Net sum  │ Source
───────────────────────────────────────────────────────────────────────────────────────
   1                                                               │ def step():
   2     1  1.50 us   3.91 KiB  ▲ 3.91 KiB  8.00 KiB  ● +3.91 KiB  │     a = ones(1000)
"""


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(REPORT.to_json(), "utf-8")
    return path


def test_show_prints_the_table(saved):
    done = tensorlens(saved.parent, "show", "run.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == TABLE


@pytest.mark.parametrize(
    ("ending", "start"), [("html", "<!"), ("csv", "function,"), ("txt", TABLE), ("json", "{")]
)
def test_show_converts_by_suffix(saved, ending, start):
    out = saved.parent / f"out.{ending}"
    done = tensorlens(saved.parent, "show", "run.json", "-o", out.name)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"tensorlens: wrote {out.name}\n"
    assert out.read_text("utf-8").lower().startswith(start.lower())


def test_show_overwrites_only_when_forced(saved):
    out = saved.parent / "out.txt"
    out.write_text("precious")
    done = tensorlens(saved.parent, "show", "run.json", "-o", "out.txt")
    assert done.returncode == 2
    assert own_lines(done.stderr) == [
        "tensorlens: error: out.txt exists: choose another name, or overwrite it with -f"
    ]
    assert out.read_text() == "precious"
    assert tensorlens(saved.parent, "show", "-f", "-o", "out.txt", "run.json").returncode == 0
    assert out.read_text("utf-8").startswith(TABLE)


def test_a_closed_pipe_is_silent(saved):
    launcher = "import sys; from tensorlens.cli import main; sys.exit(main())"
    reading, writing = os.pipe()
    os.close(reading)
    child = subprocess.Popen(
        [sys.executable, "-c", launcher, "show", "run.json"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=saved.parent,
    )
    os.close(writing)
    assert child.wait() == 1
    assert child.stderr.read() == b""
    child.stderr.close()


def spoilt(**changes):
    return json.dumps({**REPORT.to_dict(), **changes}).encode()


def with_peak(peak):
    data = REPORT.to_dict()
    data["functions"][0]["lines"][1]["memory"]["cpu"]["peak"] = peak
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.json", None, "there is no file a.json"),
        ("a.json", b"hello", "a.json: not a tensorlens report: it is not JSON"),
        ("a.json", b"\x93NUMPY\xff\xfe", "a.json: not a tensorlens report: it is not text"),
        ("a.json", b"[" * 200_000, "a.json: not a tensorlens report: it is not JSON"),
        ("a.json", b"{}", "a.json: not a tensorlens report; what can be read is .json and .tlens"),
        ("a.keras", b"PK\x03\x04", "a.keras: a zip archive, such as torch.save() and Keras write"),
        ("a.json", spoilt(version=2), "line report of version 2; this tensorlens reads 1"),
        ("a.json", spoilt(functions=5), "a.json: damaged line report: "),
        ("a.json", with_peak("much"), "a.json: damaged: "),
        (
            "a.html",
            b"<html>",
            "a.html: a .html file is not shown again: open it in a browser, or keep the .json",
        ),
    ],
)
def test_unshowable_file_is_one_line(tmp_path, capsys, monkeypatch, name, content, text):
    from tensorlens.cli import main

    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["show", name]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"tensorlens: error: {text}") or text in err
    assert err.count("\n") == 1


def test_a_folder_gets_one_line(tmp_path, capsys):
    from tensorlens.cli import main

    assert main(["show", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"tensorlens: error: {tmp_path} is a folder: give a .json file that tensorlens wrote\n"
    )


def test_show_of_snapshots(tmp_path, capsys, monkeypatch):
    from tensorlens.cli import main

    monkeypatch.chdir(tmp_path)
    write(tmp_path, a=AFTER)
    assert main(["show", "a.json"]) == 0
    assert capsys.readouterr().out == str(AFTER)
    options = ["--top", "1", "--min-size", "2 KiB", "--role", "parameter", "-v", "--explain"]
    assert main(["show", "a.json", "--device", "cpu", *options]) == 0
    text = capsys.readouterr().out
    assert "storage 0x1000, stride (1,)" in text
    assert "3 more tensors, 3.00 KiB (of other roles)" in text
    assert main(["show", "a.json", "--top", "all"]) == 0
    for ending in ("html", "csv", "txt", "json"):
        assert main(["show", "a.json", "-o", f"b.{ending}"]) == 0


@pytest.mark.parametrize(
    "options", [["--top", "many"], ["--top", "-3"], ["--min-size", "big"], ["--role", "weights"]]
)
def test_options_it_does_not_know_get_one_line(tmp_path, capsys, monkeypatch, options):
    from tensorlens.cli import main

    monkeypatch.chdir(tmp_path)
    write(tmp_path, a=AFTER)
    try:
        code = main(["show", "a.json", *options])
    except SystemExit as exit:
        code = exit.code
    assert code == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1


def test_a_damaged_snapshot_gets_one_line(tmp_path, capsys, monkeypatch):
    from tensorlens.cli import main

    monkeypatch.chdir(tmp_path)
    data = AFTER.to_dict()
    data["ledger"]["cpu"]["allocated"] = "much"
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert main(["show", "a.json"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("tensorlens: error: a.json: damaged: ")
    assert error.count("\n") == 1
