"""``tensorlens merge``: several snapshots as one, their devices called after their files."""

import pytest
from saved_snapshots import AFTER, BEFORE, write

from tensorlens import Snapshot, load
from tensorlens.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write(tmp_path, rank0=BEFORE, rank1=AFTER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_merge_writes_one_snapshot(folder, capsys):
    assert main(["merge", "rank0.json", "rank1.json", "-o", "all.json"]) == 0
    assert capsys.readouterr() == ("", "tensorlens: wrote all.json\n")
    merged = load(folder / "all.json")
    assert merged == Snapshot.merged({"rank0": BEFORE, "rank1": AFTER})
    assert main(["merge", "all.json", "x=rank0.json", "-o", "more.json"]) == 0
    more = load(folder / "more.json")
    assert list(more.ledger) == ["all/rank0/cpu", "all/rank1/cpu", "x/cpu"]


def test_merge_prints_and_show_selects_a_rank(folder, capsys):
    assert main(["merge", "rank0.json", "rank1.json"]) == 0
    printed = capsys.readouterr().out
    assert "\nrank0/cpu  5.00 KiB in 2 tensors, all of 5.00 KiB allocated\n" in printed
    assert "\nrank1/cpu  7.00 KiB in 4 tensors, all of 7.00 KiB allocated\n" in printed
    main(["merge", "rank0.json", "rank1.json", "-o", "all.json"])
    assert main(["show", "all.json", "--device", "rank1"]) == 0
    printed = capsys.readouterr().out
    assert "Not shown: rank0/cpu (5.00 KiB in 2 tensors)" in printed


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["rank0.json", "rank0.json"], 2),
        (["a=rank0.json", "a=rank1.json"], 2),
        (["=rank0.json"], 2),
        (["rank0.json", "none.json"], 1),
        (["rank0.json", "n" * 300], 1),
        (["rank0.json", "-o", "all.xml"], 2),
    ],
)
def test_bad_input_gets_one_line(folder, capsys, names, code):
    assert main(["merge", *names]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("tensorlens: error: ") and err.count("\n") == 1
