"""A torch that is too old is told in one line, with what to do, at each call that needs torch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from commands import python

from tests import warm

NEEDED = (
    "torch 2.5.1+cpu is too old: tensorlens needs torch 2.6 or later: pip install -U 'torch>=2.6'"
)
PROGRAM = "import tensorlens, torch\nprint(tensorlens.{call})\n"
CALLS = [
    "record().start()",
    "MemReporter().snapshot()",
    "find_leaks(print, steps=3)",
    "estimate('train:make', device='cpu')",
    "estimate('train:make', card='t4')",
    "compare('train:make', {'baseline': {}})",
    "suggest('train:make')",
]


@pytest.fixture
def run(tmp_path):
    """Run Python where an old torch is installed; all that it has is its version."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("from torch.version import __version__\n")
    (package / "version.py").write_text("__version__ = '2.5.1+cpu'\n")
    (tmp_path / "train.py").write_text("def make():\n    return print\n")
    root = Path(__file__).parents[2]
    paths = os.pathsep.join(map(str, (tmp_path, root)))

    def run(*words):
        interpreter = warm.python(bare=True)
        done = python(tmp_path, *words, interpreter=interpreter, PYTHONPATH=paths, COLUMNS="200")
        return done.stdout + done.stderr

    return run


@pytest.mark.parametrize("call", CALLS)
def test_calls_say_which_torch_is_needed(run, call):
    text = run("-c", PROGRAM.format(call=call))
    assert NEEDED in text
    assert text.count("too old") == 1


def test_doctor_says_which_torch_is_needed(run):
    # TensorFlow takes seconds
    code = "from tensorlens.cli import doctor, main; doctor._FRAMEWORKS = ('torch',)"
    code += "; main(['doctor'])"
    words = " ".join(run("-c", code).split())
    assert "torch 2.5.1+cpu" in words and "needs torch 2.6 or later: pip install -U" in words
