"""A trace: a program's requests to allocators, without the allocators, and what was assumed."""

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
"""Whose allocators are asked, and whose steps run; TensorFlow has Keras's."""


@dataclass(frozen=True, slots=True)
class Caution:
    """Something that was not run as a real device would run it, and what that may mean."""

    text: str
    """One line: what was met, what was assumed in its place, and what it may add."""
    line: SourceLine | None = None
    """The user's line that it was met on."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A rule of thumb that many people use, and why it does not tell what a step needs."""

    name: str
    """``weights + layer outputs``."""
    nbytes: int
    why: str
    """One line: what it leaves out."""


@dataclass(frozen=True, slots=True)
class Handover:
    """A block that becomes a variable's value, or is no longer one, where it lies."""

    row: int
    """How many events there were before it."""
    address: int
    """Of the block."""
    label: Label
    """Its label from then on."""
    stack: int = -1
    context: Context | None = None


@dataclass(slots=True)
class Trace:
    """The requests of a run on tensors without data, in the order in which they were made.

    In the log the address of a block is a number of its own that no other block has, and the size
    is the bytes that were asked for. Each step begins with a mark: ``step 1``, ``step 2`` and so
    on; the last mark is ``end``. What comes before the first is the making of model and data.
    """

    log: EventLog = field(default_factory=EventLog)
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Row of an allocation to the least and the most bytes it may take, where its size depends on
    what only a real device decides; the log has the likeliest."""
    scratch: dict[int, str] = field(default_factory=dict)
    """Row of an allocation to what it is, where no tensor has it: ``cuBLAS workspace``."""
    handovers: list[Handover] = field(default_factory=list)
    """Blocks that are another thing from some event on, in the order of these."""
    brought: dict[int, Label] = field(default_factory=dict)
    """Row of an allocation to the input that it is, if no model or optimizer has it: tensors that
    the program copied, collated or made outside of backward."""
    emptied: list[tuple[int, str]] = field(default_factory=list)
    """How many rows there were, and of which device, when ``empty_cache()`` was called."""
    cautions: list[Caution] = field(default_factory=list)
    approximate: str | None = None
    """Why the device could not be put on stage, and host memory stands for it; else None."""
    unsimulated: str | None = None
    """Part of the program that no simulator knows: its figures have no bounds; else None."""
    framework: Framework = "torch"
    """Whose allocators are asked."""
    batch: int | None = None
    """How many samples a step of a Keras model was given; None: the inputs tell."""
    spread: tuple[int, int] | None = None
    """The least and the most of the peak on the CPU, where operations that are ready at the same
    time may come in several orders; the log has the likeliest."""
    formulas: Sequence[Formula] = ()
    """Results of rules of thumb, to be told beside the figures."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """``torch`` to its version, and so on."""


class Cautions:
    """Assumptions, once for each line of the program."""

    def __init__(self) -> None:
        self.found: list[Caution] = []
        self._seen: set[tuple[str, SourceLine | None]] = set()

    def __call__(self, text: str) -> None:
        """Note what was assumed for what the program does now."""
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
    """Let :func:`caution` reach these while it is entered."""
    _listening.append(cautions)
    try:
        yield
    finally:
        _listening.remove(cautions)


def caution(text: str) -> None:
    """Note one line on what was assumed."""
    if _listening:
        _listening[-1](text)
