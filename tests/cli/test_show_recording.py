"""``tensorlens show`` of a recording: as text, as a page, at another instant."""

import sys
from pathlib import Path

import pytest
from commands import own_lines, tensorlens
from saved_snapshots import AFTER, write

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "render"))

import rendered_recordings as recordings
from test_recording_text import TRAINING_120

from tensorlens.cli import main


@pytest.fixture
def saved(tmp_path):
    return recordings.training().save(tmp_path / "run.tlens")


def test_show_prints_the_recording(saved):
    done = tensorlens(saved.parent, "show", "run.tlens")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == TRAINING_120


@pytest.mark.parametrize(
    ("ending", "start"),
    [
        ("html", "<!doctype html>"),
        ("csv", "row,action,device,"),
        ("txt", TRAINING_120),
        ("json", '{"schema":"tensorlens.recording_summary"'),
        ("tlens", '{"schema":'),
    ],
)
def test_show_converts_the_recording(saved, monkeypatch, capsys, ending, start):
    monkeypatch.chdir(saved.parent)
    assert main(["show", "run.tlens", "-o", f"out.{ending}"]) == 0
    assert capsys.readouterr() == ("", f"tensorlens: wrote out.{ending}\n")
    text = Path(f"out.{ending}").read_text("utf-8")
    assert text.replace('": "', '":"').startswith(start)


def test_show_at_another_instant(saved, monkeypatch, capsys):
    monkeypatch.chdir(saved.parent)
    assert main(["show", "run.tlens", "--at", "backward", "--top", "1"]) == 0
    out = capsys.readouterr().out
    when = 'after 2.00 ms, in forward at train.py:3, after "forward"'
    assert f"cpu  168.00 KiB (172,032 B) in 4 blocks, {when}" in out
    # the input and the two activations: 20 + 40 + 8 KiB
    assert "  … 3 more blocks, 68.00 KiB (all: show --top all, or top=None)\n" in out
    assert main(["show", "run.tlens", "--at", "7", "-o", "at.html"]) == 0
    assert "250.00 KiB (256,000 B) in 4 blocks, after 6.00 ms, in optimizer at train.py:5" in Path(
        "at.html"
    ).read_text("utf-8")


def test_roles_and_devices(saved, monkeypatch, capsys):
    monkeypatch.chdir(saved.parent)
    assert main(["show", "run.tlens", "--role", "temporary", "--at", "7"]) == 0
    assert "aten::sqrt at train.py:5  temporary  30.00 KiB" in capsys.readouterr().out
    assert main(["show", "run.tlens", "--device", "cuda"]) == 0
    assert capsys.readouterr().out.endswith("\nNot shown: cpu (peak 268.00 KiB)\n")


def test_json_keeps_the_events(saved, monkeypatch, capsys):
    monkeypatch.chdir(saved.parent)
    assert main(["show", "run.tlens", "-o", "run.json"]) == 0
    capsys.readouterr()
    for instant in ([], ["--at", "7"]):
        assert main(["show", "run.tlens", *instant]) == 0
        of_events = capsys.readouterr().out
        assert main(["show", "run.json", *instant]) == 0
        assert capsys.readouterr() == (of_events, "")


@pytest.mark.parametrize("output", [[], ["-o", "out.html"]])
def test_show_at_unknown_instant(saved, output):
    done = tensorlens(saved.parent, "show", "run.tlens", "--at", "nowhere", *output)
    assert (done.returncode, done.stdout) == (2, "")
    assert own_lines(done.stderr)[-1] == (
        "tensorlens: error: the recording has no mark 'nowhere': it has forward, backward, end"
    )
    assert not (saved.parent / "out.html").exists()


def test_an_instant_is_of_recordings_alone(tmp_path):
    write(tmp_path, a=AFTER)
    done = tensorlens(tmp_path, "show", "a.json", "--at", "3")
    assert done.returncode == 2
    assert own_lines(done.stderr)[-1] == (
        "tensorlens: error: --at is for recordings: a.json is a snapshot"
    )
