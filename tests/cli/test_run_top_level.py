"""``tensorlens run -p`` of a program that does its work outside of functions."""

import ast
import json

import pytest
from commands import python, warm_tensorlens

from tensorlens.cli import programs

LOOP = '''\
"""A training loop."""
from __future__ import annotations

import sys

try:
    import torch
except ImportError:
    raise

kept = []


def batch(size):
    return torch.zeros(size)


weights = torch.zeros(1000)
for step in range(3):
    kept.append(torch.zeros(100))  # stays
    made = batch(50)
if len(sys.argv) > 1:
    raise SystemExit(int(sys.argv[1]))
print("done", sum(each.numel() for each in kept))
'''
TITLE = "top level of loop.py  loop.py:1  1 call  peak 5.47 KiB"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    return tmp_path


def test_lines_of_a_loop_outside_of_functions_are_a_table(folder):
    done = warm_tensorlens(folder, "run", "-p", "loop.py", "-o", "x.json", "loop.py")
    assert (done.returncode, done.stdout) == (0, "done 300\n")
    top, batch = json.loads((folder / "x.json").read_text())["functions"]
    assert (top["name"], top["calls"], top["note"]) == ("top level of loop.py", 1, None)
    assert (batch["name"], batch["calls"]) == ("batch", 3)
    found = {
        line["source"].strip(): (line["hits"], line["memory"]["cpu"]["net"])
        for line in top["lines"]
        if line["hits"]
    }
    assert found["weights = torch.zeros(1000)"] == (1, 4000)
    assert found["kept.append(torch.zeros(100))  # stays"] == (3, 1200)
    # what a function does is its caller's as well
    assert found["made = batch(50)"] == (3, 200)
    # before the framework was there nothing was counted
    assert "import sys" not in found
    (kept,) = [line for line in top["lines"] if "stays" in line["source"]]
    assert kept["memory"]["cpu"]["growth"] == 1200


def test_top_level_lines_are_printed_and_exit_code_kept(folder):
    done = warm_tensorlens(folder, "run", "-p", "loop.py", "loop.py", "3")
    assert done.returncode == python(folder, "loop.py", "3").returncode == 3
    assert TITLE in done.stdout.splitlines()
    assert "raised SystemExit: 3" in done.stdout


def test_module_that_is_run_by_name(folder):
    done = warm_tensorlens(folder, "run", "-p", "loop", "-m", "loop")
    assert done.returncode == 0
    assert TITLE in done.stdout.splitlines()


@pytest.mark.parametrize("target", ["loop.batch", "__main__.batch"])
def test_function_that_is_named_is_alone(folder, target):
    done = warm_tensorlens(folder, "run", "-p", target, "loop.py")
    assert "top level" not in done.stdout
    assert "batch  loop.py:14  3 calls" in done.stdout


def test_modules_that_are_imported_have_no_table_of_their_own(folder):
    (folder / "main.py").write_text("import loop\n\ndef main():\n    loop.batch(2)\n\nmain()\n")
    done = warm_tensorlens(folder, "run", "-p", ".", "main.py")
    assert done.returncode == 0
    assert "top level" not in done.stdout
    assert "batch  loop.py:14  4 calls" in done.stdout


@pytest.mark.parametrize(
    "source",
    [
        "x = make()",
        "for x in y: pass",
        "while True: pass",
        "with a: pass",
        "if a:\n    b.c()",
        "try:\n    f()\nexcept E: pass",
        "def f(): pass\nx = g(f())",
    ],
)
def test_module_level_work_is_recognized(source):
    assert programs.instrument.does_work(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        '"""Text."""\nimport a\nfrom b import c\nX: int = 3\nY = -1, "z"\nZ: int',
        "def main(): pass\nif __name__ == '__main__':\n    main()",
        "def main(): pass\nif __name__ == '__main__':\n    import sys\n    sys.exit(main())",
        "def main(): pass\nraise SystemExit(main())",
        "class A: pass\nasync def f():\n    for x in y: pass\nmodel = A()",
    ],
)
def test_definitions_and_calls_are_no_module_level_work(source):
    assert not programs.instrument.does_work(ast.parse(source))
