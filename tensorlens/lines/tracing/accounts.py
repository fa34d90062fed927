"""The figures of each line, added up as it runs: constant memory per line, however often it runs.

Figures travel as one flat sequence, three integers a device (allocated, peak since the previous
read, reserved), in the order of the process's slots; see :mod:`tensorlens.lines.counters`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

from tensorlens.frameworks.base import UNKNOWN
from tensorlens.frameworks.compilers import TracedCode

_Marks: TypeAlias = "tuple[int, int, int, _Marks | None]"
"""How many marks there are; the start of a hit, what had survived before it, the marks below.

Tuples, since a change of a list is a call."""
_MOST_MARKS = 8

WIDTH = 3
"""Figures a slot: allocated, peak, reserved."""


class DeviceFigures:
    """The running figures of one line on one device, in bytes."""

    __slots__ = (
        "allocated", "first_start", "inner", "last_net", "last_start", "marks", "net",
        "net_first", "net_max", "peak", "reserved", "rise", "survived", "unread",
    )  # fmt: skip

    def __init__(self) -> None:
        self.allocated = UNKNOWN
        self.peak = UNKNOWN
        self.reserved = UNKNOWN
        self.net = 0
        self.inner = 0
        """Part of ``net`` that lines of profiled functions have that it called."""
        self.net_max: int | None = None
        self.net_first: int | None = None
        self.rise = 0
        """How far the highest peak is above the start of its hit."""
        self.first_start = 0
        """Bytes handed out when the first hit began."""
        self.last_start = 0
        self.last_net = 0
        self.marks: _Marks | None = None
        """The starts of hits whose net may be there still: it is gone where a level as low comes
        again."""
        self.survived = 0
        """Of each hit's net, what can have been there still when the next one began."""
        self.unread = False
        """A read failed at a start or an end: the sum of nets is not known."""

    def note_survivors(self, start: int) -> None:
        """Note what of the last hit's net can be there still when the next begins at ``start``."""
        marks = self.marks
        while marks is not None:
            _, level, survived, below = marks
            if start > level:
                break
            self.survived = survived
            marks = below
        grown = start - self.last_start
        if self.last_net > 0 and grown > 0:
            depth = 0 if marks is None else marks[0]
            if depth < _MOST_MARKS:
                marks = depth + 1, self.last_start, self.survived, marks
            self.survived += grown if grown < self.last_net else self.last_net
        self.marks = marks
        grown = start - self.first_start
        if self.survived > grown:
            self.survived = grown if grown > 0 else 0


class LineStats:
    """The running figures of one line."""

    __slots__ = ("cells", "hits", "raised", "time_ns")

    def __init__(self) -> None:
        self.hits = 0
        self.time_ns = 0
        self.cells: list[DeviceFigures] = []
        self.raised: str | None = None

    def widen(self, slots: int, lock: AbstractContextManager[Any]) -> None:
        """Make room for the figures of devices that came into use."""
        with lock:  # two threads at once would make too much of it
            while len(self.cells) < slots:
                self.cells.append(DeviceFigures())


class Switch:
    """Whether a profiler's accounts are to be filled: on while ``count`` is above 0."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def on(self) -> None:
        """Switch on; calls nest."""
        self.count += 1

    def off(self) -> None:
        """Undo one :meth:`on`."""
        self.count -= 1


class Account:
    """All that was seen of one code object, for one profiler."""

    __slots__ = (
        "callers", "calls", "cleared", "code", "failure", "graphs", "lines", "passes", "switch",
        "traced",
    )  # fmt: skip

    def __init__(self, code: CodeType, switch: Switch) -> None:
        self.code = code
        self.switch = switch
        self.calls = 0
        self.cleared = False
        """There were figures, and they were cleared."""
        self.lines: dict[int, LineStats] = {}
        self.callers: set[tuple[Account, int] | None] = set()
        """The profiled lines that called it; None where another line did."""
        self.passes: dict[int, BackwardPass] = {}
        """The lines that run backward passes."""
        self.failure: str | None = None
        """Failures inside tensorlens, or tracers that cut in, while it was being filled."""
        self.traced = 0
        """How often it ran only to build a graph."""
        self.graphs: TracedCode | None = None
        """Followers of the graphs that have nodes of it, where there are any."""

    @property
    def ran(self) -> bool:
        """Whether its code was called, or a graph that it is part of."""
        return bool(self.calls) or (self.graphs is not None and self.graphs.figures() is not None)

    def clear(self) -> None:
        """Start afresh; activations in flight go on into the fresh figures."""
        self.cleared = self.cleared or self.ran or bool(self.traced)
        self.calls = self.traced = 0
        self.lines = {}
        for each in self.passes.values():
            each.clear()
        self.failure = None
        if self.graphs is not None:
            self.graphs.clear()

    def line(self, lineno: int) -> LineStats:
        """Return the figures of a line, made on its first use."""
        stats = self.lines.get(lineno)
        if stats is None:
            stats = self.lines.setdefault(lineno, LineStats())
        return stats


_CALL = re.compile(r"\bbackward\(|\bautograd\.grad\(|\btape\.gradient\(")
_DEFINITION = re.compile(r"\s*(async\s+)?def\s")
_FIRST = 4
"""Passes that are each looked at; of later ones the powers of two."""
_MOST = 20
"""Lines that are kept of a pass, those with the most bytes."""


class LineKey(NamedTuple):
    """A line of a profiled function."""

    filename: str
    lineno: int
    function: str


class BackwardPass:
    """The passes that one line runs, one after the other."""

    __slots__ = ("_at_begin", "_at_end", "_count", "_peaks", "residents")

    def __init__(self) -> None:
        self._count = 0
        self._at_begin: dict[LineKey, list[int]] = {}
        self._at_end: dict[LineKey, list[int]] = {}
        self._peaks: list[tuple[int, int]] = []
        self.residents: list[list[tuple[LineKey, int]]] = []
        """A slot each, of the pass with the highest peak: the lines that had left most since the
        pass before, and their bytes, without those of the profiled functions that they called.
        Empty where no look was taken at that pass."""

    def begin(self, accounts: Callable[[], Iterable[Account]]) -> None:
        """Note that the line begins."""
        self._count += 1
        if _is_looked_at(self._count):
            self._at_begin = dict(_own_nets(accounts()))

    def end(
        self, accounts: Callable[[], Iterable[Account]], peaks: Sequence[int], rises: Sequence[int]
    ) -> None:
        """Note that the line has ended, with its peak of each slot and how far it rose to it."""
        is_looked_at = _is_looked_at(self._count)
        for slot, peak in enumerate(zip(peaks, rises, strict=True)):
            if slot == len(self._peaks):
                self._peaks.append((0, 0))
                self.residents.append([])
            # of equal peaks the one that rose most, as a line's figures have it; the last of these,
            # as before the first pass lines count that ran long ago
            highest = self._peaks[slot]
            if peak > highest or (peak == highest and is_looked_at):
                self._peaks[slot] = peak
                grown = self._grown(slot) if is_looked_at else ()
                self.residents[slot] = sorted(grown, key=lambda each: -each[1])[:_MOST]
        if _is_looked_at(self._count + 1):
            self._at_end = dict(_own_nets(accounts()))

    def clear(self) -> None:
        """Start afresh."""
        self.__init__()  # type: ignore[misc]

    def _grown(self, slot: int) -> Iterator[tuple[LineKey, int]]:
        for line, nets in self._at_begin.items():
            before = self._at_end.get(line, ())
            grown = sum(nets[slot : slot + 1]) - sum(before[slot : slot + 1])
            if grown > 0:
                yield line, grown


def _is_looked_at(number: int) -> bool:
    """Tell of a pass by its number: a look at all lines takes as long as several lines do."""
    return number <= _FIRST or not number & (number - 1)


def backward_passes(source: Sequence[str], first_line: int) -> dict[int, BackwardPass]:
    """Return what follows the lines that call a backward pass, by their numbers."""
    return {
        lineno: BackwardPass()
        for lineno, text in enumerate(source, first_line)
        if _CALL.search(text) and not _DEFINITION.match(text)
    }


def _own_nets(accounts: Iterable[Account]) -> Iterator[tuple[LineKey, list[int]]]:
    for account in accounts:
        code = account.code
        for lineno, stats in list(account.lines.items()):
            key = LineKey(code.co_filename, lineno, code.co_qualname)
            yield key, [cell.net - cell.inner for cell in stats.cells]
