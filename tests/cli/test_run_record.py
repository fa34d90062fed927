"""``tensorlens run --record``: what is recorded, when it begins and ends, what is refused."""

import signal

import pytest
from commands import (
    own_lines,
    program_lines,
    python,
    tensorlens,
    warm_tensorlens,
)

import tensorlens as package
from tensorlens.units import format_bytes
from tests import warm

pytest.importorskip("torch")

TRAIN = """\
import sys
import torch

def step():
    x = torch.ones(1024, requires_grad=True)
    y = x.exp()
    y.sum().backward()
    return x

kept = step()
"""
BY_HAND = """\
import tensorlens

@tensorlens.profile
def step():
    import torch
    return torch.ones(1 << 20)

kept = step()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "step.py").write_text(BY_HAND)
    return tmp_path


def last_words(done):
    return own_lines(done.stderr)


def test_a_program_is_recorded_from_its_import_of_torch_on(folder):
    done = warm_tensorlens(folder, "run", "--record", "run.tlens", "train.py")
    assert (done.returncode, done.stdout) == (0, "")
    recording = package.load(folder / "run.tlens")
    # x, its exponential, their sum, a one for it, and the gradient of x
    events = f"{len(recording.log):,} events, peak {format_bytes(3 * 4096 + 2 * 4)} on cpu"
    assert last_words(done) == [
        f"tensorlens: wrote run.tlens ({events}); next: tensorlens show run.tlens"
    ]
    assert program_lines(done.stderr) == []
    # the gradient that exp gets is expanded from a one, made for line 7; times its result it is
    # that of x
    charged = [(cost.line.lineno, cost.nbytes) for cost in recording.backward()]
    assert charged == [(6, 4096), (7, 4)]
    kept = [block for block in recording.at(len(recording.log) - 1).tensors if block.known]
    # as it was called when backward began
    assert ("step(): x", 4096) in {(block.name, block.nbytes) for block in kept}
    shown = warm_tensorlens(folder, "show", "run.tlens")
    assert shown.returncode == 0 and shown.stdout.startswith("Memory over time")


def test_profiled_lines_get_their_backward(folder):
    done = warm_tensorlens(folder, "run", "-p", "train.py", "--record", "run.tlens.gz", "train.py")
    line = next(line for line in done.stdout.splitlines() if "│" in line and "exp()" in line)
    assert line.split("│")[0].rstrip().endswith("4.00 KiB")
    assert [line.split(" (")[0] for line in last_words(done)] == [
        "tensorlens: to keep these figures: tensorlens run -p train.py -o train.json train.py",
        "tensorlens: wrote run.tlens.gz",
    ]


def test_figures_and_recording_side_by_side(folder):
    done = warm_tensorlens(
        folder, "run", "-p", "train.py", "-o", "l.json", "--record", "r.html", "train.py"
    )
    assert [line.split(" (")[0].split(";")[0] for line in last_words(done)] == [
        "tensorlens: wrote l.json",
        "tensorlens: wrote r.html",
    ]
    assert last_words(done)[1].endswith("; next: open r.html in a browser")
    (function,) = package.load(folder / "l.json").functions
    assert [m.backward for line in function.lines for m in line.memory.values()] == [0, 4096, 4, 0]


def test_torch_that_is_imported_later_in_a_function(folder):
    done = warm_tensorlens(folder, "run", "--record", "run.tlens", "step.py")
    assert done.returncode == 0
    recording = package.load(folder / "run.tlens")
    assert recording.peak("cpu").bytes == 4 << 20
    assert recording.peak("cpu").tensors[0].born.lineno == 6


def test_a_program_without_torch(folder):
    (folder / "plain.py").write_text("print('done')\n")
    done = warm_tensorlens(folder, "run", "--record", "run.tlens", "plain.py")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert last_words(done) == [
        "tensorlens: --record: the program never imported torch or "
        "tensorflow, so run.tlens was not written"
    ]
    assert not (folder / "run.tlens").exists()


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("raise ValueError('x')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_exit_codes_are_the_programs_and_the_recording_is_written(folder, ending, code):
    (folder / "train.py").write_text(f"{TRAIN}{ending}\n")
    done = warm_tensorlens(folder, "run", "--record", "run.tlens", "train.py")
    assert done.returncode == code
    assert last_words(done)[0].startswith("tensorlens: wrote run.tlens (")
    assert len(package.load(folder / "run.tlens").log) > 5
    alone = python(folder, "train.py", interpreter=warm.python())
    assert alone.returncode == code
    assert program_lines(done.stderr) == alone.stderr.splitlines()


def test_memory_that_runs_out_is_explained(folder):
    (folder / "train.py").write_text(
        f"{TRAIN}sys.excepthook = lambda *given: print(given[1].args)\nbig = torch.empty(1 << 45)\n"
    )
    done = warm_tensorlens(folder, "run", "--record", "run.tlens", "train.py")
    # a program with a hook of its own says what it likes; the note is there for it
    assert done.returncode == 1 and "[enforce fail at" in done.stdout
    (folder / "train.py").write_text(f"{TRAIN}big = torch.empty(1 << 45)\n")
    done = warm_tensorlens(folder, "run", "-f", "--record", "run.tlens", "train.py")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("tensorlens: out of"))
    assert lines[start + 1 : start + 4] == [
        f"  by         {folder / 'train.py'}:11 in <module>",
        "               big = torch.empty(1 << 45)",
        "  in         aten::empty",
    ]
    assert lines[-1].startswith("tensorlens: wrote run.tlens (")


def test_forked_workers_leave_the_file_alone(folder):
    (folder / "train.py").write_text(
        f"{TRAIN}\nimport os, multiprocessing\n"
        "if not os.fork():\n    step()\n    sys.exit(0)\nos.wait()\n"
        "worker = multiprocessing.get_context('fork').Process(target=step)\n"
        "worker.start(); worker.join()\n"
    )
    done = warm_tensorlens(folder, "run", "--record", "run.tlens", "train.py")
    assert done.returncode == 0
    assert len(last_words(done)) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["run.tlens", "step.py", "train.py"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--events", "3"], "--events is for --record FILE"),
        (["--record", "r.tlens", "--events", "0"], "--events 0: give how many events are kept"),
        (["--record", "r.xyz"], "cannot tell the format of 'r.xyz'"),
        (["--record", "train.py/r.tlens"], "there is no folder"),
        (["--record", "there.tlens"], "there.tlens exists: choose another name"),
        (["--record", "r.html", "-o", "r.html"], "-o and --record both name r.html"),
        (["-o", "r.tlens"], "-o r.tlens would keep a recording: give it to --record"),
    ],
)
def test_bad_record_options_are_refused_before_the_program_runs(folder, options, text):
    (folder / "there.tlens").write_text("")
    done = tensorlens(folder, "run", *options, "train.py")
    assert done.returncode in (1, 2) and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "error: " in line and text in line


def test_a_recorder_that_cannot_be_had(folder):
    done = warm_tensorlens(
        folder, "run", "--record", "r.tlens", "train.py", TENSORLENS_COUNTER="resident"
    )
    assert done.returncode == 0
    (line,) = last_words(done)
    assert line.startswith("tensorlens: --record: ") and line.endswith("r.tlens was not written")
