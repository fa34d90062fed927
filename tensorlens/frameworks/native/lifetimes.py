"""From when to when the blocks of a recording were there, for what a census saw at some time."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from tensorlens.frameworks.native.recorder import Columns
from tensorlens.records.events import ALLOC

AT_THE_END = 2**63 - 1
"""The time of what happens after the last event."""

_NEVER = -1


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time, in monotonic nanoseconds."""

    begin: int
    end: int


class Lifetimes:
    """When the block of each row was handed out, and until when it is known to have been there.

    Times are monotonic nanoseconds; those of blocks from before the recording are before it.
    """

    def __init__(self, made: array[int], until: array[int]) -> None:
        self._made = made
        self._until = until

    def there(self, span: Span) -> list[int]:
        """Return the rows of the blocks that were there all of a span."""
        lives = enumerate(zip(self._made, self._until, strict=True))
        begin, end = span.begin, span.end
        return [row for row, (made, until) in lives if made < begin and until >= end]


def of_events(rows: Columns) -> Lifetimes:
    """Return the lifetimes of the blocks of all events."""
    return Lifetimes(rows.time, _ends(rows))


def of_dropped(peak: Columns, rows: Columns) -> Lifetimes:
    """Return the lifetimes of what was resident at the highest instant among dropped events.

    Those that outlived these events are among the ``rows``, where their end is known. Of the
    others it is known that they were there at that instant, which its newest block made.
    """
    kept = dict(zip(zip(rows.address, rows.time, strict=True), _ends(rows), strict=True))
    instant = max(peak.time, default=0)
    blocks = zip(peak.address, peak.time, strict=True)
    return Lifetimes(peak.time, array("q", (max(kept.get(key, 0), instant) for key in blocks)))


def _ends(rows: Columns) -> array[int]:
    def end(kind: int, pair: int) -> int:
        if kind > ALLOC:
            return _NEVER
        return AT_THE_END if pair < 0 else rows.time[pair]

    return array("q", map(end, rows.kind, rows.pair))
