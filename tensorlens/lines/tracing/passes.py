"""Bytes that each line had left when a backward pass began.

A training step is highest in its backward pass, whose line says nothing of the forward lines whose
activations are there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tensorlens.lines.tracing.accounting import Account

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
