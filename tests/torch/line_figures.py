"""Figures of profiled lines relative to what was handed out before the call, for the tests."""

import contextlib
import inspect
import os
import subprocess
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

import tensorlens
from tensorlens.frameworks.torch import Adapter, TorchAllocator
from tests import warm

ROOT = Path(__file__).parents[2]
FLOAT = 4
LONG = 8
# a Python number in an operation becomes a tensor of 8 bytes (c10::Scalar holds an int64 or a
# double), and TensorIterator casts it to the float32 of the other operand
NUMBER = LONG + FLOAT


class Figures(NamedTuple):
    allocated: int
    peak: int
    net: int


class Lines:
    """The lines of one function: ``lines["part of the source"]``, in bytes above ``base``."""

    def __init__(self, function, base):
        self.function = function
        self.base = base

    def line(self, part):
        found = [line for line in self.function.lines if part in line.source]
        assert len(found) == 1, (part, [line.source for line in found])
        return found[0]

    def __getitem__(self, part):
        memory = self.line(part).memory["cpu"]
        return Figures(memory.allocated - self.base, memory.peak - self.base, memory.net)


def handed_out():
    """Return the bytes handed out now, without ending anybody's peak."""
    counter = Adapter().cpu_counter()
    if not isinstance(counter, TorchAllocator):
        pytest.skip("; ".join(Adapter().notes()))
    return counter.allocated()


class Decorated:
    """Profiles functions by wrapping them, under their own names as a decorator does."""

    def __init__(self, *functions):
        self.profiler = tensorlens.LineProfiler()
        self.wrapped = {id(function): self.profiler(function) for function in functions}

    @contextlib.contextmanager
    def _on(self):
        names = {f.__name__: f for f in map(inspect.unwrap, self.wrapped.values())}
        (space,) = {id(f.__globals__): f.__globals__ for f in names.values()}.values()
        space.update({name: self.wrapped[id(f)] for name, f in names.items()})
        yield
        space.update(names)

    def measure(self, function, *args):
        base = handed_out()
        call = self.wrapped.get(id(function), function)
        given = list(reversed(args))
        del args
        with self._on():
            # the function alone holds its arguments: no tuple, no local of ours
            if len(given) == 1:
                self.returned = call(given.pop())
            elif len(given) == 2:
                self.returned = call(given.pop(), given.pop())
            else:
                self.returned = call(*given)
        return self.lines(base)

    def lines(self, base):
        report = self.profiler.result()
        found = [Lines(function, base) for function in report.functions]
        return found[0] if len(found) == 1 else found


class SwitchedOn(Decorated):
    """Profiles functions that were left as they are, in a ``with`` block."""

    def __init__(self, *functions):
        self.profiler = tensorlens.LineProfiler(*functions)
        self.wrapped = {}

    def _on(self):
        return self.profiler


def run(code, *arguments, status=0, **environment):
    """Run ``code``, or a file, in a process of its own; return the finished process."""
    what = [str(code)] if isinstance(code, Path) else ["-c", textwrap.dedent(code)]
    result = subprocess.run(
        [*warm.python(), *what, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **environment},
    )
    assert result.returncode == status, (result.returncode, result.stdout, result.stderr)
    return result
