"""``tensorlens convert``: any readable record to any ending."""

import json
import pickle
from itertools import pairwise

import pytest
from saved_snapshots import BEFORE, write

from tensorlens import load
from tensorlens.cli import main

EVENTS = [
    {"action": "alloc", "addr": 0, "size": 700, "stream": 0, "time_us": 1000, "frames": []},
    {"action": "alloc", "addr": 1024, "size": 1, "stream": 0, "time_us": 1001, "frames": []},
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write(tmp_path, report=BEFORE)
    snapshot = {"segments": [], "device_traces": [EVENTS]}
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "ending",
    [
        "tlens",
        "tlens.gz",
        "pickle",
        "perfetto.json",
        "trace.json",
        "speedscope.json",
        "folded",
        "json",
        "csv",
        "html",
        "txt",
    ],
)
def test_a_snapshot_becomes_anything(folder, capsys, ending):
    assert main(["convert", "snapshot.pickle", "-o", f"out.{ending}"]) == 0
    assert capsys.readouterr() == ("", f"tensorlens: wrote out.{ending}\n")
    assert (folder / f"out.{ending}").stat().st_size > 0
    if ending in ("tlens", "tlens.gz"):
        again = load(folder / f"out.{ending}")
        # 700 B and 1 B in blocks of 512 B
        assert again.peak("cuda:0").bytes == 1024 + 512
    assert main(["convert", "snapshot.pickle", "-o", f"out.{ending}"]) == 2
    assert "overwrite it with -f" in capsys.readouterr().err
    assert main(["convert", "snapshot.pickle", "-o", f"out.{ending}", "-f"]) == 0


def test_there_and_back_again(folder):
    steps = ["snapshot.pickle", "a.tlens", "b.tlens.gz", "c.tlens"]
    for before, after in pairwise(steps):
        assert main(["convert", before, "-o", after]) == 0
    assert (folder / "a.tlens").read_bytes() == (folder / "c.tlens").read_bytes()


def test_a_report_of_tensors_becomes_another(folder):
    assert main(["convert", "report.json", "-o", "out.csv"]) == 0
    assert (folder / "out.csv").read_text().startswith("name,")
    assert main(["convert", "report.json", "-o", "out.json"]) == 0
    assert load(folder / "out.json") == BEFORE


EVIL = b"\x80\x04cos\nsystem\n(X\x02\x00\x00\x00lstR."


@pytest.mark.parametrize(
    ("given", "wanted", "code", "message"),
    [
        ("report.json", "x.pickle", 2, ".pickle is for recordings: save this one as .json"),
        ("report.json", "x.folded", 2, ".folded is for recordings: save this one as .json"),
        ("none.pickle", "x.tlens", 1, "there is no file none.pickle"),
        ("snapshot.pickle", "x.xml", 2, "cannot tell the format of 'x.xml'"),
        ("snapshot.pickle", "none/x.tlens", 1, "there is no folder"),
        (
            "evil.pickle",
            "x.tlens",
            1,
            "evil.pickle: tries to run code (os.system): refused; nothing was run",
        ),
        ("model.json", "x.tlens", 1, "model.json: not a tensorlens report"),
        ("lists.json", "x.tlens", 1, "lists.json: damaged snapshot: object of type"),
    ],
)
def test_unconvertible_file_is_one_line(folder, capsys, given, wanted, code, message):
    (folder / "evil.pickle").write_bytes(EVIL)
    (folder / "model.json").write_text('{"layers": []}')
    (folder / "lists.json").write_text(json.dumps({"device_traces": 3}))
    assert main(["convert", given, "-o", wanted]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("tensorlens: error: ") and err.count("\n") == 1
    assert message in err
    assert not (folder / wanted).exists()


def test_show_prints_a_snapshot_of_torch(folder, capsys):
    assert main(["show", "snapshot.pickle"]) == 0
    printed = capsys.readouterr().out
    assert "cuda:0" in printed and "1.50 KiB" in printed


def test_missing_output_explains_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["convert", "snapshot.pickle"])
    assert ended.value.code == 2
    assert "-o" in capsys.readouterr().err
