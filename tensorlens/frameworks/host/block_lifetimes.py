"""Lifetimes of the blocks of a recording, as far as they are known."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from itertools import compress, count, repeat
from operator import ge, lt

from tensorlens.frameworks.host.allocator_log import Columns
from tensorlens.records.logs.events import ALLOC

AT_THE_END = 2**63 - 1
"""Time after the last event."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A span of time, in monotonic nanoseconds."""

    begin: int
    end: int


class BlockLifetimes:
    """Times at which the block of each row was allocated, and until which it surely lived.

    Times are monotonic nanoseconds; blocks from before the recording have times before it. From
    row ``first`` on the allocation times rise.
    """

    def __init__(self, made: array[int], until: array[int], first: int) -> None:
        self._made = made
        self._until = until
        self._first = first

    def rows_during(self, span: TimeSpan) -> list[int]:
        """Return the rows of the blocks that lived all through a span."""
        last = bisect_left(self._made, span.begin, self._first)
        lasting = compress(range(last), map(ge, self._until, repeat(span.end)))
        return [row for row in lasting if self._made[row] < span.begin]


def event_lifetimes(rows: Columns) -> BlockLifetimes:
    """Return the lifetimes of the blocks of all events."""
    return BlockLifetimes(rows.time, _ends(rows), bisect_left(rows.kind, ALLOC))


def dropped_lifetimes(peak: Columns, rows: Columns) -> BlockLifetimes:
    """Return the lifetimes of the blocks resident at the peak of the dropped events.

    Blocks that outlived the dropped events are among ``rows``, with their ends. The others lived
    at least until the peak, which is the time of the newest of them.
    """
    kept = dict(zip(zip(rows.address, rows.time, strict=True), _ends(rows), strict=True))
    instant = max(peak.time, default=0)
    blocks = zip(peak.address, peak.time, strict=True)
    until = array("q", (max(kept.get(key, 0), instant) for key in blocks))
    return BlockLifetimes(peak.time, until, len(until))


def _ends(rows: Columns) -> array[int]:
    """Return the time at which each row's block was freed; of other rows their own time."""
    until = array("q", map(rows.time.__getitem__, rows.pair))
    for row in compress(count(), map(lt, rows.pair, repeat(0))):
        until[row] = AT_THE_END if rows.kind[row] <= ALLOC else rows.time[row]
    return until
