"""explain_oom() in whole programs, also where next to nothing is left to explain with."""

import os
import re
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).parents[2]
resource = pytest.importorskip("resource")

# without what a user may have set for us
SURROUNDINGS = {name: os.environ[name] for name in os.environ if "TENSORLENS" not in name}
SURROUNDINGS["PYTHONPATH"] = str(ROOT)
BEGINNING = "tensorlens: out of memory: "

LIMITED = """\
import re, resource, sys
import {first}
import tensorlens
{before}
import torch
import {last}

def size():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmSize:\\s+(\\d+)", status.read())[1]) << 10

def fill(make):
    kept = []
    while True:
        kept.append(make())  # fills

def main():
    limit = size() + (128 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    {act}

{run}
"""

HOOKS = "tensorlens.explain_oom()"
ENDINGS = {
    "hooks": (HOOKS, "main()"),
    "recording": ("", "with tensorlens.record():\n    main()"),
    "profiled": ("", "tensorlens.profile(main)()"),
}
ACTS = {
    "one huge request": "torch.empty(1 << 30)",
    "a hundred at once": "fill(lambda: torch.empty(1 << 18))",
    "tiny ones to the end": "fill(lambda: torch.empty(60))",
    "numbers of Python": "fill(lambda: bytearray(1000))",
}


def run(tmp_path, source, *arguments, **options):
    path = tmp_path / "program.py"
    path.write_text(source)
    given = arguments or (str(path),)
    return subprocess.run(
        [*warm.python(), *given],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**SURROUNDINGS, "PATH": "/usr/bin:/bin"},
        timeout=120,
        **options,
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits as Linux has them")
@pytest.mark.parametrize(
    ("way", "act"),
    [
        *(("hooks", act) for act in ACTS),
        *product(("recording", "profiled"), ("a hundred at once", "tiny ones to the end")),
    ],
)
def test_under_a_limit_the_program_ends_as_it_would_with_an_explanation(tmp_path, way, act):
    before, last = ENDINGS[way]
    source = LIMITED.format(first="os", last="os", before=before, act=ACTS[act], run=last)
    done = run(tmp_path, source)
    assert done.returncode == 1, done.stderr[-2000:]
    error, found, explanation = done.stderr.partition("\n" + BEGINNING)
    # nothing but the error itself, and an explanation or the one line that there cannot be one
    assert "During handling" not in done.stderr and "Error in sys.excepthook" not in done.stderr
    assert error.count("Traceback (most recent call last)") == 1
    if not found and act == "tiny ones to the end":
        # torch's own: not even its exception could be made
        assert error.endswith("SystemError: error return without exception set\n")
        return
    assert found, done.stderr[-2000:]
    if act == "one huge request":
        assert explanation.startswith("Tried to allocate 4.00 GiB (4,294,967,296 B) on cpu\n")
        assert "  by         " + str(tmp_path / "program.py") + ":" in explanation
    if act == "a hundred at once":
        kept = re.search(r"^ +[\d.]+ MiB  fill\(\): kept holds (\d+) tensors", explanation, re.M)
        assert kept is not None and 60 < int(kept[1]) < 180
    if "explain it" not in explanation:
        assert f"{tmp_path / 'program.py'}:" in explanation


PROGRAM = """\
import sys, threading
import tensorlens
tensorlens.explain_oom()
import torch

def step():
    return torch.empty(1 << 45)

def wrapped():
    try:
        step()
    except RuntimeError as error:
        raise ValueError("training failed") from error

def group():
    try:
        step()
    except RuntimeError as error:
        found = error
    raise ExceptionGroup("several", [found, KeyError("x")])

def thread():
    worker = threading.Thread(target=step)
    worker.start()
    worker.join()

def handled():
    for _ in range(20):
        try:
            step()
        except RuntimeError:
            pass

def left():
    try:
        step()
    except RuntimeError:
        raise SystemExit(7)

if __name__ == "__main__":
    globals()[sys.argv[1]]()
"""


@pytest.mark.parametrize(
    ("function", "code", "explained"),
    [
        ("step", 1, 1),
        ("wrapped", 1, 1),
        ("group", 1, 1),
        ("thread", 0, 1),
        ("handled", 0, 0),
        ("left", 7, 0),
    ],
)
def test_torch_imported_later_than_the_call(tmp_path, function, code, explained):
    (tmp_path / "program.py").write_text(PROGRAM)
    for arguments in (["program.py"], ["-m", "program"])[: 2 if function == "step" else 1]:
        done = run(tmp_path, PROGRAM, *arguments, function)
        assert done.returncode == code
        # a group indents what it shows
        assert done.stderr.count(BEGINNING) == explained, done.stderr
        if explained:
            assert re.search(r"by         \S*program\.py:7 in step\n", done.stderr)


def test_a_ctrl_c_ends_the_program_as_ever(tmp_path):
    source = (
        "import tensorlens, time\ntensorlens.explain_oom()\nprint(1, flush=True)\ntime.sleep(60)\n"
    )
    path = tmp_path / "program.py"
    path.write_text(source)
    program = subprocess.Popen(
        [*warm.python(), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=SURROUNDINGS,
    )
    assert program.stdout is not None
    program.stdout.readline()
    time.sleep(0.2)
    program.send_signal(signal.SIGINT)
    _, stderr = program.communicate(timeout=60)
    assert program.returncode == -signal.SIGINT
    assert stderr.rstrip().endswith("KeyboardInterrupt") and "tensorlens:" not in stderr


def test_oom_in_ipython(tmp_path):
    pytest.importorskip("IPython")
    source = """\
from IPython.testing.globalipapp import start_ipython
shell = start_ipython()
import torch
import tensorlens
stop = tensorlens.explain_oom()
shell.run_cell("import torch; torch.empty(1 << 45)")
stop()
shell.run_cell("torch.empty(1 << 45)")
"""
    done = run(tmp_path, source)
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count(BEGINNING) == 1
