"""Bytes that each line had left when a backward pass began.

A training step is highest in its backward pass, whose line says nothing of the forward lines whose
activations are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tensorlens.lines.tracing.accounting import Account

_CALL = re.compile(r"\bbackward\(|\bautograd\.grad\(|\btape\.gradient\(")
_DEFINITION = re.compile(r"\s*(async\s+)?def\s")
_MOST = 20
"""Lines that are kept of a pass, those with the most bytes."""


class LineKey(NamedTuple):
    """A line of a profiled function."""

    filename: str
    lineno: int
    function: str


class BackwardPass:
    """The passes that one line runs, one after the other."""

    __slots__ = ("_at_begin", "_at_end", "_peaks", "residents")

    def __init__(self) -> None:
        self._at_begin: dict[LineKey, list[int]] = {}
        self._at_end: dict[LineKey, list[int]] = {}
        self._peaks: list[tuple[int, int]] = []
        self.residents: list[list[tuple[LineKey, int]]] = []
        """A slot each, of the pass with the highest peak: the lines that had left most since the
        pass before, and their bytes, without those of the profiled functions that they called."""

    def begin(self, accounts: Iterable[Account]) -> None:
        """Note that the line begins."""
        self._at_begin = dict(_own_nets(accounts))

    def end(self, accounts: Iterable[Account], peaks: Sequence[int], rises: Sequence[int]) -> None:
        """Note that the line has ended, with its peak of each slot and how far it rose to it."""
        for slot, peak in enumerate(zip(peaks, rises, strict=True)):
            if slot == len(self._peaks):
                self._peaks.append((0, 0))
                self.residents.append([])
            # of equal peaks the one that rose most, as a line's figures have it; the last of these,
            # as before the first pass lines count that ran long ago
            if peak >= self._peaks[slot]:
                self._peaks[slot] = peak
                self.residents[slot] = sorted(self._grown(slot), key=lambda each: -each[1])[:_MOST]
        self._at_end = dict(_own_nets(accounts))

    def clear(self) -> None:
        """Start afresh."""
        self.__init__()  # type: ignore[misc]

    def _grown(self, slot: int) -> Iterator[tuple[LineKey, int]]:
        for line, nets in self._at_begin.items():
            before = self._at_end.get(line, ())
            grown = sum(nets[slot : slot + 1]) - sum(before[slot : slot + 1])
            if grown > 0:
                yield line, grown


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
