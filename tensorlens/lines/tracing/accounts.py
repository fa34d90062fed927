"""The running figures of each line, in constant memory per line.

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
"""A linked stack of marks: its depth, a hit's start, ``survived`` before that hit, the marks below.

Plain tuples: changing a list would be a call."""
_MAX_MARKS = 8

WIDTH = 3
"""Figures per slot: allocated, peak, reserved."""


class DeviceFigures:
    """The running figures of one line on one device, in bytes.

    ``survived`` bounds what can have leaked. When a hit begins, the previous hit's net is added, at
    most the device's growth since that hit began: the rest was freed. Marks are the starts of
    added hits: when a hit begins at or below a mark, nothing added since the mark is left.
    """

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
        """Part of ``net`` that is the net of profiled functions it called."""
        self.net_max: int | None = None
        self.net_first: int | None = None
        self.rise = 0
        """Bytes from the start of its hit to the highest peak."""
        self.first_start = 0
        """Allocated bytes when the first hit began."""
        self.last_start = 0
        self.last_net = 0
        self.marks: _Marks | None = None
        self.survived = 0
        self.unread = False
        """Whether a read at a start or an end failed: the sum of nets is unknown then."""

    def note_survivors(self, start: int) -> None:
        """Update ``survived`` as the next hit begins at ``start`` bytes."""
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
            if depth < _MAX_MARKS:
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
        """Add cells for devices that came into use."""
        with lock:  # two threads at once would add too many
            while len(self.cells) < slots:
                self.cells.append(DeviceFigures())


class Switch:
    """The switch of a profiler's accounts: on while ``count`` is above 0."""

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
    """The figures of one code object, for one profiler."""

    __slots__ = (
        "backward_passes", "callers", "calls", "cleared", "code", "failure", "graphs", "lines",
        "switch", "traced",
    )  # fmt: skip

    def __init__(self, code: CodeType, switch: Switch) -> None:
        self.code = code
        self.switch = switch
        self.calls = 0
        self.cleared = False
        """Whether figures were cleared."""
        self.lines: dict[int, LineStats] = {}
        self.callers: set[tuple[Account, int] | None] = set()
        """The profiled lines that called it; None stands for any other line."""
        self.backward_passes: dict[int, BackwardPasses] = {}
        """Line number to the backward passes that the line runs."""
        self.failure: str | None = None
        """The last failure inside tensorlens, or the tracer that took over, for the note."""
        self.traced = 0
        """Number of calls that only built a graph."""
        self.graphs: TracedCode | None = None
        """Figures of the graphs that have nodes of its lines; None without a graph framework."""

    @property
    def ran(self) -> bool:
        """Whether its code was called, or a graph that it is part of."""
        return bool(self.calls) or (self.graphs is not None and self.graphs.figures() is not None)

    def clear(self) -> None:
        """Reset the figures; running activations add to the new ones."""
        self.cleared = self.cleared or self.ran or bool(self.traced)
        self.calls = self.traced = 0
        self.lines = {}
        for each in self.backward_passes.values():
            each.clear()
        self.failure = None
        if self.graphs is not None:
            self.graphs.clear()

    def line(self, lineno: int) -> LineStats:
        """Return the figures of a line, created on first use."""
        stats = self.lines.get(lineno)
        if stats is None:
            stats = self.lines.setdefault(lineno, LineStats())
        return stats


_BACKWARD_CALL = re.compile(r"\bbackward\(|\bautograd\.grad\(|\btape\.gradient\(")
_DEFINITION = re.compile(r"\s*(async\s+)?def\s")
_ALWAYS_EXAMINED = 4
"""The first passes of a line are all examined, later ones at powers of two."""
_MAX_RESIDENTS = 20
"""Lines kept of a pass, those with the most bytes."""


class LineKey(NamedTuple):
    """A line of a profiled function."""

    filename: str
    lineno: int
    function: str


class BackwardPasses:
    """The successive backward passes of one line, and what was resident at the largest."""

    __slots__ = ("_at_begin", "_at_end", "_count", "_peaks", "residents")

    def __init__(self) -> None:
        self._count = 0
        self._at_begin: dict[LineKey, list[int]] = {}
        self._at_end: dict[LineKey, list[int]] = {}
        self._peaks: list[tuple[int, int]] = []
        self.residents: list[list[tuple[LineKey, int]]] = []
        """Per slot, for the pass with the highest peak: the lines that had left most since the
        pass before, and their bytes, without those of the profiled functions that they called.
        Empty if that pass was not examined."""

    def begin(self, accounts: Callable[[], Iterable[Account]]) -> None:
        """Note that the line begins."""
        self._count += 1
        if _is_examined(self._count):
            self._at_begin = dict(_own_nets(accounts()))

    def end(
        self, accounts: Callable[[], Iterable[Account]], peaks: Sequence[int], rises: Sequence[int]
    ) -> None:
        """Note that the line has ended, with its peak and its rise in each slot."""
        is_examined = _is_examined(self._count)
        for slot, latest in enumerate(zip(peaks, rises, strict=True)):
            if slot == len(self._peaks):
                self._peaks.append((0, 0))
                self.residents.append([])
            # of equal peaks that with the largest rise, as in a line's figures; of equal rises the
            # last that is examined, since at the first pass lines of long ago count as well
            highest = self._peaks[slot]
            if latest > highest or (latest == highest and is_examined):
                self._peaks[slot] = latest
                grown = self._grown(slot) if is_examined else ()
                self.residents[slot] = sorted(grown, key=lambda each: -each[1])[:_MAX_RESIDENTS]
        if _is_examined(self._count + 1):
            self._at_end = dict(_own_nets(accounts()))

    def clear(self) -> None:
        """Reset all figures."""
        self.__init__()  # type: ignore[misc]

    def _grown(self, slot: int) -> Iterator[tuple[LineKey, int]]:
        for line, nets in self._at_begin.items():
            before = self._at_end.get(line, ())
            grown = sum(nets[slot : slot + 1]) - sum(before[slot : slot + 1])
            if grown > 0:
                yield line, grown


def _is_examined(number: int) -> bool:
    """Return whether to examine a pass: reading all lines costs as much as several lines do."""
    return number <= _ALWAYS_EXAMINED or not number & (number - 1)


def find_backward_passes(source: Sequence[str], first_line: int) -> dict[int, BackwardPasses]:
    """Map the number of each line that calls a backward pass to its record of them."""
    return {
        lineno: BackwardPasses()
        for lineno, text in enumerate(source, first_line)
        if _BACKWARD_CALL.search(text) and not _DEFINITION.match(text)
    }


def _own_nets(accounts: Iterable[Account]) -> Iterator[tuple[LineKey, list[int]]]:
    for account in accounts:
        code = account.code
        for lineno, stats in list(account.lines.items()):
            key = LineKey(code.co_filename, lineno, code.co_qualname)
            yield key, [cell.net - cell.inner for cell in stats.cells]
