"""The command line as a whole: help, version, errors of usage, what it costs to start."""

import subprocess
import sys

import pytest
from commands import environment, python, tensorlens

import tensorlens as package


def test_alone_it_prints_its_help(tmp_path):
    done = tensorlens(tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: tensorlens ")
    for verb in ("run", "show", "doctor"):
        assert f"\n  {verb} " in done.stdout


def test_it_runs_as_a_module_and_tells_its_version(tmp_path):
    done = python(tmp_path, "-m", "tensorlens", "--version")
    assert (done.returncode, done.stdout) == (0, f"tensorlens {package.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["frob"], "frob is no command; the commands are run, leaks"),
        (["run"], "tensorlens run: error: give a SCRIPT, or -m MODULE"),
        (["run", "-m"], "tensorlens run: error: give a SCRIPT, or -m MODULE"),
        (
            ["run", "-p", "train.py"],
            "give a SCRIPT, or -m MODULE: train.py was taken as what belongs to -p (see",
        ),
        (["run", "-o"], "tensorlens run: error: argument -o/--output: expected one argument"),
        (["show"], "tensorlens show: error: the following arguments are required: FILE"),
    ],
)
def test_errors_of_usage_are_one_line_and_exit_with_2(tmp_path, arguments, text):
    done = tensorlens(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.rstrip().endswith("--help)")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["train.py", "--lr", "0.1"], "did you mean: tensorlens run train.py --lr 0.1 (see"),
        (["saved.json"], "did you mean: tensorlens show saved.json (see"),
        (["rum"], "rum is no command; did you mean run? (see"),
        (["estimate", "a.py:f", "--capactiy", "1GiB"], "--capactiy; did you mean --capacity? (see"),
        (["diff", "a", "b", "--outptu=c"], "did you mean --output? (see"),
        (
            ["diff", "a", "b", "--zzzz"],
            "unrecognized arguments: --zzzz (see tensorlens diff --help)",
        ),
        (["inputs", "loader"], "is for Python, tensorlens.inputs(...) (see"),
        (["plan", "3x"], "SHAPE '3x': give whole numbers"),
    ],
)
def test_the_nearest_name_is_offered(tmp_path, arguments, meant):
    (tmp_path / "saved.json").write_text("{}")
    done = tensorlens(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert meant in done.stderr


def test_light_verbs_import_no_framework(tmp_path):
    code = """
import contextlib, io, sys
from tensorlens.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["--version"])
print(sorted({"torch", "numpy", "line_profiler", "psutil", "tabulate", "jinja2"} & {*sys.modules}))
with contextlib.redirect_stderr(io.StringIO()):
    main(["show", "missing.json"])
print(sorted({"torch", "numpy", "line_profiler", "psutil", "IPython"} & {*sys.modules}))
"""
    assert python(tmp_path, "-c", code).stdout == "[]\n[]\n"


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    launcher = "from tensorlens.cli import main; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", launcher, "doctor", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=tmp_path,
    )
    child.stdout.close()
    assert child.wait() in (0, 120)  # argparse prints the help, and ends the process, itself
    child.stderr.close()
