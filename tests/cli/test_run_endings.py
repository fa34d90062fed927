"""However the program ends, and whatever it did to its process: its exit code, and our files."""

from __future__ import annotations

import os
import signal
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import ROOT, environment, own_lines, program_lines

from tensorlens import load
from tensorlens.cli import main
from tests import warm

STEP = """
import os, sys, threading
import torch, tensorlens
@tensorlens.profile
def step(size):
    return torch.ones(size).sum().item()
step(1000)
"""
WITHOUT_TORCH = STEP.replace("torch, ", "").replace("torch.ones(size).sum().item()", "size")
ENDS = {
    "at once": "print('lost', end=''); os._exit(7)",
    "with threads": (
        "threads = [threading.Thread(target=step, args=(9,)) for _ in range(20)]\n"
        "threads += [threading.Thread(target=sys.exit, args=(3,))]\n"
        "[each.start() for each in threads]; [each.join() for each in threads]\n"
        "threading.Thread(target=lambda: [step(1) for _ in range(99)]).start()\n"
        "sys.exit(5)"
    ),
    "with an exit handler that fails": (
        "import atexit\natexit.register(lambda: print(sys.exc_info()[0]) or {}['missing'])"
    ),
    "in a folder that is gone, without temporary files and an environment": (
        "import shutil, tempfile\nos.mkdir('tmp'); tempfile.tempdir = os.path.abspath('tmp')\n"
        "shutil.rmtree('tmp')\nos.mkdir('sub'); os.chdir('sub'); os.rmdir('../sub')\n"
        "os.environ.clear()"
    ),
    "without standard streams": "sys.stdout = sys.stderr = None",
    "with both closed": "sys.stdout.close(); sys.stderr.close()",
    "without descriptors": "os.close(1); os.close(2)",
    "with streams that fail": (
        "class Refusing:\n    def write(self, text): raise RuntimeError('no')\n"
        "    def flush(self): pass\n"
        "sys.stdout = sys.stderr = Refusing()"
    ),
    "interrupted": "import signal\nos.kill(os.getpid(), signal.SIGINT)",
    "after a fork and workers": (
        "import multiprocessing\nif __name__ == '__main__':\n"
        "    if not os.fork():\n        os._exit(4)\n"
        "    print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "    with multiprocessing.get_context('fork').Pool(1) as pool:\n"
        "        assert pool.map(abs, [-1, -2]) == [1, 2]"
    ),
}

OF_THE_PROCESS = (
    "at once",
    "in a folder that is gone, without temporary files and an environment",
    "without standard streams",
    "with streams that fail",
)
"""Those that are not about the interpreter's own end."""


def python(
    folder: Path, *words: str, interpreter: Sequence[str] = (), **changes: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(interpreter or warm.python()), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        env=environment(PYTHONDONTWRITEBYTECODE="1", **changes),
    )


@pytest.mark.parametrize("ending", ENDS)
def test_program_ends_as_it_does_alone_and_its_files_are_there(tmp_path: Path, ending: str) -> None:
    code = STEP.replace("step(1000)", "if __name__ == '__main__':\n    step(1000)") + ENDS[ending]
    for name in ("alone", "observed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "program.py").write_text(code)
    alone = python(tmp_path / "alone", "program.py", TENSORLENS="0")
    words = ("-m", "tensorlens", "run", "-o", "out.json", "--record", "out.tlens", "program.py")
    interpreter = warm.python(ends=ending not in OF_THE_PROCESS)
    observed = python(tmp_path / "observed", *words, interpreter=interpreter)
    assert observed.returncode == alone.returncode
    assert observed.stdout == alone.stdout
    plain = alone.stderr.replace(str(tmp_path / "alone"), str(tmp_path / "observed"))
    assert [line for line in program_lines(observed.stderr) if "0x" not in line] == [
        line for line in plain.splitlines() if "0x" not in line
    ]
    assert load(tmp_path / "observed" / "out.json").functions[0].calls >= 1
    assert load(tmp_path / "observed" / "out.tlens").peak("cpu").bytes >= 4000


def test_tables_are_printed_before_the_program_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"{STEP}os._exit(7)\n")
    for words in (("program.py",), ("-m", "tensorlens", "run", "program.py")):
        done = python(tmp_path, *words)
        assert done.returncode == 7 and "1 call" in done.stdout


CUT = """
import os, signal
import torch, tensorlens
kept = []
def layer(x):
    return torch.relu(x * 2)
def forward(x):
    for _ in range(3):
        x = layer(x)
    return x
@tensorlens.profile
def train():
    weight = torch.zeros(256, requires_grad=True)
    for step in range(4):
        loss = forward(weight)
        kept.append(torch.zeros(16))
        if step == 3:
            ENDS
        loss.sum().backward()
        del loss
train()
"""


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", "SIGTERM"),
        ("os.kill(os.getpid(), signal.SIGINT)", "SIGINT"),
        ("raise ValueError", "ValueError"),
    ],
)
def test_mark_of_what_stayed_is_not_of_a_step_that_did_not_end(
    tmp_path: Path, ends: str, cause: str
) -> None:
    (tmp_path / "program.py").write_text(CUT.replace("ENDS", ends))
    words = ("run", "-p", "program.py", "-o", "out.json", "--record", "run.tlens", "program.py")
    python(tmp_path, "-m", "tensorlens", *words, interpreter=warm.python(ends=True))
    report = load(tmp_path / "out.json")
    assert f"{cause} ended the program at " in str(report).splitlines()[0]
    assert report.ending.line.lineno == 18
    (note,) = load(tmp_path / "run.tlens").origin.notes
    assert note.startswith(f"{cause} ended the program at ") and note.endswith("program.py:18")
    # of 12 KiB of activations 9 KiB were freed, and 3 KiB are of the step that did not end
    marked = {line for line in str(report).splitlines() if "● +" in line}
    assert all("weight = " in line and "+1.00 KiB" in line for line in marked) and marked
    lines = {line.source.strip(): line for line in report.functions[-1].lines}
    # four hits of 64 B, and the last does not count
    assert lines["kept.append(torch.zeros(16))"].memory["cpu"].growth == 3 * 64


@pytest.mark.parametrize(("named", "notes"), [("import sys", 1), ("own = ['-o']", 0)])
def test_option_after_a_program_that_does_not_name_it_is_noted(
    tmp_path: Path, named: str, notes: int
) -> None:
    (tmp_path / "program.py").write_text(f"{STEP}{named}\nprint(sys.argv[1:])\n")
    words = ("-m", "tensorlens", "run", "program.py", "-o", "out.json")
    done = python(tmp_path, *words)
    assert done.stdout.startswith("['-o', 'out.json']\n")
    note = (
        "tensorlens: note: -o after program.py goes to program.py; for tensorlens, put it before "
        "program.py"
    )
    assert own_lines(done.stderr).count(note) == notes


@pytest.mark.parametrize(
    ("source", "notes"), [("own = ['-o']", 0), ("own = []", 1), (None, 0)], ids=str
)
@pytest.mark.parametrize("name", ["pk.train", "pk"])
def test_option_after_a_module_is_looked_for_in_its_file(
    tmp_path: Path, name: str, source: str | None, notes: int
) -> None:
    file = "pk/train.py" if name == "pk.train" else "pk/__main__.py"
    if source is None:
        # of what lies in an archive there is no file
        with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
            archive.writestr(file, "")
            archive.writestr("pk/__init__.py", "")
    else:
        (tmp_path / "pk").mkdir()
        (tmp_path / file).write_text(source)
    words = ("-m", "tensorlens", "run", "-m", name, "-o", "out.json")
    done = python(tmp_path, *words, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path / 'lib.zip'}")
    assert done.returncode == 0, done.stderr
    note = f"tensorlens: note: -o after {name} goes to {name}; for tensorlens, put it before {name}"
    assert own_lines(done.stderr).count(note) == notes


def test_program_that_ends_by_itself_has_no_ending(saved: Path) -> None:
    assert load(saved / "lines.json").ending is None


def test_thread_that_ends_the_process_does_not_wait_for_a_report(tmp_path: Path) -> None:
    code = f"{STEP}thread = threading.Thread(target=os._exit, args=(7,))\nthread.start()\n"
    (tmp_path / "program.py").write_text(f"{code}thread.join()\n")
    done = python(tmp_path, "-m", "tensorlens", "run", "-o", "out.json", "program.py")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_report_that_fails_is_one_line(tmp_path: Path) -> None:
    closes = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\nsys.exit(6)\n"
    (tmp_path / "program.py").write_text(STEP + closes)
    done = python(tmp_path, "-m", "tensorlens", "run", "-o", "out.json", "program.py")
    assert done.returncode == 6
    (line,) = done.stderr.splitlines()
    assert line.startswith("tensorlens: ") and "Too many open files" in line


INTERRUPTED = """
import pathlib, signal
def interrupting(name, times):
    real = getattr(pathlib.Path, name)
    def interrupted(path, *given, **named):
        if path.name.startswith(".tensorlens-"):
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
        return real(path, *given, **named)
    setattr(pathlib.Path, name, interrupted)
"""


@pytest.mark.parametrize(("place", "option"), [("open", "-o"), ("replace", "--record")])
def test_first_interrupt_waits_for_the_file_and_a_second_leaves_the_old_one(
    tmp_path: Path, place: str, option: str
) -> None:
    for times, kept in ((1, False), (2, True)):
        step = STEP if option == "--record" else WITHOUT_TORCH
        code = f"{step}{INTERRUPTED}interrupting({place!r}, {times})\n"
        (tmp_path / "program.py").write_text(code)
        (tmp_path / "out.json").write_text("old")
        words = ("-m", "tensorlens", "run", option, "out.json", "-f", "program.py")
        interpreter = warm.python(bare=option == "-o", ends=True)
        done = python(tmp_path, *words, interpreter=interpreter)
        assert done.returncode == -signal.SIGINT
        assert len(own_lines(done.stderr)) == (1 if option == "-o" else 2)
        assert program_lines(done.stderr) == []
        assert ((tmp_path / "out.json").read_text() == "old") == kept
        assert ("the report is not finished" in done.stderr) == kept
        assert {each.name for each in tmp_path.iterdir()} == {"program.py", "out.json"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    (folder / "program.py").write_text(STEP)
    words = ("-m", "tensorlens", "run", "-o", "lines.json", "--record", "run.tlens", "program.py")
    assert python(folder, *words).returncode == 0
    return folder


@pytest.mark.parametrize(
    ("ending", "place"),
    [("json", "open"), ("html", "replace"), ("tlens.gz", "open"), ("pickle", "replace")],
)
def test_interrupt_leaves_the_old_file_of_any_kind(
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ending: str,
    place: str,
) -> None:
    target = tmp_path / f"out.{ending}"
    target.write_text("old")
    real = getattr(Path, place)

    def interrupted(path: Path, *given: object, **named: object) -> object:
        if path.name.startswith(".tensorlens-"):
            raise KeyboardInterrupt
        return real(path, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Path, place, interrupted)
        assert main(["show", str(saved / "run.tlens"), "-f", "-o", str(target)]) == 130
    assert capsys.readouterr() == ("", "tensorlens: interrupted\n")
    assert target.read_text() == "old"
    assert [*tmp_path.iterdir()] == [target]


def test_a_program_without_standard_error_gets_nothing_of_ours_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"{STEP}print('mine')\nsys.stderr = None\n")
    done = python(tmp_path, "-m", "tensorlens", "run", "-o", "out.json", "program.py")
    assert (done.stdout, done.stderr) == ("mine\n", "")
    assert (tmp_path / "out.json").exists()
