"""A trace: the requests of a program to allocators, and the assumptions made on the way."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from traceback import walk_stack
from typing import Literal

from tensorlens.records.logs.events import Context, EventLog, Label
from tensorlens.records.tensors import SourceLine
from tensorlens.user_code import is_foreign

Framework = Literal["torch", "tensorflow"]
"""Framework of allocators and steps; Keras counts as its backend."""


@dataclass(frozen=True, slots=True)
class Caution:
    """An assumption: something that did not run as on a real device."""

    text: str
    """One line: the cause, the assumption, and its effect on the figures."""
    line: SourceLine | None = None
    """Line of the user's code that caused it."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A popular rule of thumb, and why it is off."""

    name: str
    """``weights + layer outputs``."""
    nbytes: int
    why: str
    """One line: what it leaves out."""


@dataclass(frozen=True, slots=True)
class Handover:
    """A change of a block's role: it becomes a variable's value, or no longer is one."""

    row: int
    """Number of events before it."""
    address: int
    """Address of the block."""
    label: Label
    """The new label."""
    stack: int = -1
    context: Context | None = None


@dataclass(slots=True)
class Trace:
    """The requests of a run on tensors without data, in order.

    In the log each block has a unique number as its address, and the requested bytes as its size.
    Marks begin each step (``step 1``, ``step 2``, ...); the last one is ``end``. Events before the
    first mark make the model and the data.
    """

    log: EventLog = field(default_factory=EventLog)
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Row of an allocation to the bounds of its size in bytes, if only a real device
    decides it; the log has the likeliest size."""
    scratch: dict[int, str] = field(default_factory=dict)
    """Row of an allocation that belongs to no tensor to its name: ``cuBLAS workspace``."""
    handovers: list[Handover] = field(default_factory=list)
    """Changes of blocks' roles, in the order of events."""
    inputs: dict[int, Label] = field(default_factory=dict)
    """Row of an allocation to the label of a tensor that may be an input: copied, collated or made
    by the program without an autograd node. A block with a label, module or phase is no input."""
    emptied: list[tuple[int, str]] = field(default_factory=list)
    """Calls of ``empty_cache()``: the number of rows before it, and the device."""
    cautions: list[Caution] = field(default_factory=list)
    unsimulated: str | None = None
    """The part of the program that cannot be simulated, so that figures have no bounds; or None."""
    framework: Framework = "torch"
    batch: int | None = None
    """Samples in a step of a Keras model; None for other programs."""
    cpu_peak_bounds: tuple[int, int] | None = None
    """Bounds of the peak on the CPU in bytes, if operations may run in several orders; the log has
    the likeliest order."""
    formulas: Sequence[Formula] = ()
    """Rules of thumb, for comparison."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Package to its version."""


class Cautions:
    """Collects assumptions, each once for a line of the program."""

    def __init__(self) -> None:
        self.found: list[Caution] = []
        self._seen: set[tuple[str, SourceLine | None]] = set()

    def __call__(self, text: str) -> None:
        """Note an assumption at the line that the program is on."""
        frames = walk_stack(sys._getframe(1))
        lines = (
            SourceLine(each.f_code.co_filename, lineno or 0, each.f_code.co_qualname)
            for each, lineno in frames
            if not is_foreign(each.f_code.co_filename)
        )
        line = next(lines, None)
        if (text, line) not in self._seen:
            self._seen.add((text, line))
            self.found.append(Caution(text, line))


_listening: list[Callable[[str], None]] = []


@contextlib.contextmanager
def caution_scope(cautions: Callable[[str], None]) -> Iterator[None]:
    """Pass the texts of :func:`caution` to ``cautions`` in this context."""
    _listening.append(cautions)
    try:
        yield
    finally:
        _listening.remove(cautions)


def caution(text: str) -> None:
    """Note an assumption, in one line of text."""
    if _listening:
        _listening[-1](text)
