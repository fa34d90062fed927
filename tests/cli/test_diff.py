"""``tensorlens diff``: two snapshots, what changed, and what are no snapshots."""

import pytest
from commands import tensorlens
from saved_snapshots import AFTER, BEFORE, write

from tensorlens import LineReport, load
from tensorlens.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write(tmp_path, a=BEFORE, b=AFTER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_diff_prints_changes(folder):
    done = tensorlens(folder, "diff", "a.json", "b.json")
    assert (done.returncode, done.stderr) == (0, "")
    # 4 KiB and 1 KiB before, 4 KiB and 3 times 1 KiB after
    assert done.stdout.startswith(
        "Changes in memory\n\ncpu  +2.00 KiB in tensors (5.00 KiB to 7.00 KiB),"
    )
    assert "history[0..2] x 3" in done.stdout


def test_saved_diff_is_shown_alike(folder, capsys):
    assert main(["diff", "a.json", "b.json", "-o", "d.json"]) == 0
    assert capsys.readouterr().err == "tensorlens: wrote d.json\n"
    assert load(folder / "d.json") == AFTER - BEFORE
    assert main(["diff", "a.json", "b.json"]) == 0
    printed = capsys.readouterr().out
    assert main(["show", "d.json"]) == 0
    assert capsys.readouterr().out == printed
    assert main(["diff", "a.json", "b.json", "-o", "d.json"]) == 2
    assert main(["diff", "a.json", "b.json", "-f", "-o", "d.json"]) == 0


def test_diff_takes_view_options(folder, capsys):
    assert main(["diff", "a.json", "b.json", "--top", "0", "--device", "cpu"]) == 0
    assert "3 more tensors, +3.00 KiB (all: show --top all, or top=None)" in capsys.readouterr().out


NO_JSON = (
    "c.json: not a tensorlens report: it is not JSON; what can be read is .json and .tlens of"
    " tensorlens, memory snapshots of torch, and traces of torch.profiler"
)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "there is no file c.json"),
        ("{", NO_JSON),
        (LineReport((), ()).to_json(), "c.json: a line report, not a snapshot"),
        ((AFTER - BEFORE).to_json(), "c.json: a difference, not a snapshot"),
        (BEFORE.to_json()[:-50], NO_JSON),
    ],
)
def test_diff_of_another_file_is_one_line(folder, capsys, content, text):
    if content is not None:
        (folder / "c.json").write_text(content)
    for names in (["a.json", "c.json"], ["c.json", "a.json"]):
        assert main(["diff", *names]) == 1
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"tensorlens: error: {text}\n")
