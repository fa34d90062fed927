"""``tensorlens show``: of every verb's ``-o x.json`` it prints what the verb prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from commands import own_lines, warm_tensorlens

from tensorlens import render
from tensorlens.cli import VERBS, main
from tensorlens.planning import processes
from tensorlens.render import width
from tests import warm

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "render"))

import rendered_recordings

TRAIN = """
import contextlib, os, tensorlens, torch

def make_step(rows=64):
    with contextlib.suppress(OSError):
        os.rmdir(os.path.join(os.path.dirname(__file__), "away"))
    model = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = torch.ones(rows, 32)
    def step():
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()
    return step

def save(name):
    with open(name, "w") as file:
        file.write(tensorlens.MemReporter().snapshot().to_json())

if __name__ == "__main__":
    if not os.path.exists("before.json"):
        save("before.json")
    step = make_step()
    for _ in range(6):
        step()
    save("after.json")
"""

OF_PROGRAMS = {
    "run": ("run", "-p", "train.py", "-o", "{}", "train.py"),
    "run --record": ("run", "--record", "{}", "train.py"),
    "leaks": ("leaks", "-o", "{}", "train.py"),
    "estimate": ("estimate", "-o", "{}", "train.py:make_step", "--card", "a100"),
    "compare": (
        *("compare", "-o", "{}", "train.py:make_step"),
        *("--option", "half", "rows=32", "--repeats", "1"),
    ),
    "suggest": ("suggest", "-o", "{}", "train.py:make_step"),
}
"""Their figures are not the same twice: what one run prints is compared with what it saves."""
OF_FILES = {
    "plan": ("plan", "64x64x3", "--batch", "8,16", "--workers", "2"),
    "show": ("show", "run.tlens"),
    "diff": ("diff", "before.json", "after.json"),
    "merge": ("merge", "before.json", "after.json"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("verbs")
    (made / "train.py").write_text(TRAIN)
    done = warm_tensorlens(made, "run", "--record", "run.tlens", "train.py")
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def in_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    def run(*words: str, columns: str) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setattr(processes, "interpreter", lambda: warm.python(device=True))
        assert main(words) in (0, None)
        return capsys.readouterr().out

    return run


def test_every_verb_with_an_output_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    with_output = set()
    for verb in VERBS:
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        if "--output" in capsys.readouterr().out:
            with_output.add(verb)
    # convert prints nothing
    assert with_output == {*(each.partition(" ")[0] for each in OF_PROGRAMS), *OF_FILES, "convert"}


def widest(text: str) -> int:
    return max(map(width, text.splitlines()))


@pytest.mark.parametrize("verb", OF_PROGRAMS)
def test_records_of_programs_are_shown_as_printed(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
) -> None:
    (folder / "away").mkdir()
    words = [each.format("away/x.json") for each in OF_PROGRAMS[verb]]
    # the program takes the folder away: then it is printed, and saved among temporary files
    done = warm_tensorlens(folder, *words, TMPDIR=str(tmp_path), COLUMNS="60")
    assert done.returncode == (0 if verb.startswith(("run", "leaks")) else 1), done.stderr
    (copy,) = tmp_path.glob("x.*.json")
    assert f"the figures are printed instead, and are in {copy}" in own_lines(done.stderr)[-1]
    monkeypatch.chdir(folder)
    for columns in ("120", "60"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["show", str(copy)]) == 0
        shown, errors = capsys.readouterr()
        assert errors == ""
        assert widest(shown) <= int(columns)
    assert shown == done.stdout


@pytest.mark.parametrize("columns", ["60", "120"])
@pytest.mark.parametrize("verb", OF_FILES)
def test_records_of_files_are_shown_as_printed(
    folder: Path, verb: str, columns: str, in_folder: Callable[..., str]
) -> None:
    words = OF_FILES[verb]
    printed = in_folder(*words, columns=columns)
    in_folder(*words, "-f", "-o", "x.json", columns=columns)
    assert in_folder("show", "x.json", columns=columns) == printed
    assert widest(printed) <= int(columns)


OTHERS = {
    "cards": ("estimate", "train.py:make_step", "--card", "a100", "--card", "rtx 4090"),
    "explanation": ("estimate", "train.py:make_step", "--card", "a100", "--explain"),
    "largest batch": (
        *("estimate", "train.py:make_step", "--card", "a100", "--max-batch"),
        *("--capacity", "600 MiB", "--steps", "1"),
    ),
    "diff, all of it": ("diff", "before.json", "after.json", "-v", "--explain", "--top", "all"),
}


@pytest.mark.parametrize("words", OTHERS.values(), ids=OTHERS)
def test_columns_hold_where_it_is_piped(
    words: Sequence[str], in_folder: Callable[..., str]
) -> None:
    assert 0 < widest(in_folder(*words, columns="60")) <= 60


@pytest.mark.parametrize("columns", ["80"])
@pytest.mark.parametrize("verb", VERBS)
def test_help_is_as_wide_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert widest(capsys.readouterr().out) <= int(columns)


def test_converted_records_are_shown_as_their_origin(in_folder: Callable[..., str]) -> None:
    in_folder("convert", "run.tlens", "-f", "-o", "x.json", columns="80")
    shown = in_folder("show", "x.json", columns="80")
    assert shown == in_folder("show", "run.tlens", columns="80")
    assert "Memory over time" in shown


@pytest.mark.parametrize("kind", rendered_recordings.KINDS)
def test_json_keeps_any_recording(kind: str) -> None:
    recording = rendered_recordings.KINDS[kind]()
    again = type(recording).from_json(recording.to_json())
    assert render.file_content(again, "tlens") == render.file_content(recording, "tlens")


VIEWED = {
    "html": "open it in a browser",
    "csv": "open it as a table",
    "txt": "it is text to read",
    "folded": "open it with flamegraph.pl or speedscope.app",
    "pickle": "open it at pytorch.org/memory_viz",
    "speedscope.json": "open it at speedscope.app",
    "perfetto.json": "open it at ui.perfetto.dev",
    "trace.json": "open it at ui.perfetto.dev",
}


@pytest.mark.parametrize("ending", (*render.ENDINGS, *render.RECORDING_ENDINGS))
def test_unreadable_format_names_its_viewer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    monkeypatch.chdir(folder)
    assert main(["show", "run.tlens", "-f", "-o", f"y.{ending}"]) == 0
    capsys.readouterr()
    code = main(["show", f"y.{ending}"])
    out, err = capsys.readouterr()
    if ending in VIEWED:
        assert (code, out) == (1, "") and err.count("\n") == 1
        assert err.startswith(f"tensorlens: error: y.{ending}: ") and VIEWED[ending] in err
    else:
        assert code == 0 and out.startswith("Memory over time") and err == ""
