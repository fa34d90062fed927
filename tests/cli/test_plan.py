"""``tensorlens plan``."""

import json

import pytest

from tensorlens.cli import main


def test_the_table_and_the_queue(capsys):
    options = ["--batch", "256", "--workers", "2", "--prefetch", "2"]
    assert main(["plan", "256x256x3", *options]) == 0
    out = capsys.readouterr().out
    assert "256 of 256x256x3: 192.00 MiB (201,326,592 B)" in out
    assert "960.00 MiB (1,006,632,960 B)" in out


def test_resolutions_and_a_file_that_shows_again(tmp_path, capsys):
    target = tmp_path / "plan.json"
    batches = ["--batch", "32,65536", "--loader", "keras", "--workers", "2"]
    assert main(["plan", "?x?x3", *batches, "-o", str(target)]) == 0
    data = json.loads(target.read_text())
    assert (data["ahead"], data["batch_sizes"]) == (11, [32, 65536])
    capsys.readouterr()
    assert main(["show", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split() == [
        *("32", "384.00", "KiB", "1.50", "MiB", "6.00", "MiB"),
        *("24.00", "MiB", "96.00", "MiB", "384.00", "MiB"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [["axb"], ["3", "--batch", "x"], ["3", "--dtype", "f"], ["3", "--loader", "none"], ["-3x2"]],
)
def test_contradictory_plan_options_are_refused(arguments, capsys):
    try:
        code = main(["plan", *arguments])
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1
