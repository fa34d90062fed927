"""The events of a recording, played again with changes to them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from tensorlens.records.events import FREE, EventLog


class Replay:
    """The levels of one device, and changes to them."""

    def __init__(self, log: EventLog, device: int) -> None:
        self._log = log
        self._changes = array("q", bytes(8 * (len(log) + 1)))
        self._moved: dict[int, int] = {}
        """Changes right before a row by frees and blocks that were moved."""
        self._inserted: dict[int, list[int]] = {}
        sizes, changes = log.size, self._changes
        for row, (kind, here, pair) in enumerate(zip(log.kind, log.device, log.pair, strict=True)):
            if here != device:
                continue
            if kind < FREE:
                changes[row] = sizes[row]
            elif kind == FREE and pair >= 0:
                changes[row] = -sizes[pair]

    def remove(self, row: int) -> None:
        """Let an allocation not be made."""
        self._changes[row] -= self._log.size[row]
        self._undo_free(row)

    def free(self, row: int, before: int) -> None:
        """Let a block be freed right before an event; later than it was if that comes later."""
        self._undo_free(row)
        self._move(before, -self._log.size[row])

    def keep_apart(self, row: int, before: int) -> None:
        """Let a block be freed right before an event, and another be freed where it was.

        That other one is for :meth:`insert` to allocate.
        """
        self._move(before, -self._log.size[row])

    def add(self, nbytes: int, after: int, before: int) -> None:
        """Add a block that is there from after one event until right before another."""
        self._move(after + 1, nbytes)
        self._move(before, -nbytes)

    def insert(self, before: int, changes: Iterable[int]) -> None:
        """Add allocations and frees, by their sizes, one after the other before an event."""
        self._inserted.setdefault(before, []).extend(changes)

    def peak(self) -> int:
        """Return the most bytes that would have been handed out."""
        highest = level = 0
        for row, change in enumerate(self._changes):
            if row in self._moved:
                level += self._moved[row]
            for each in (*self._inserted.get(row, ()), change):
                level += each
                highest = max(highest, level)
        return highest

    def _undo_free(self, row: int) -> None:
        if self._log.pair[row] >= 0:
            self._changes[self._log.pair[row]] += self._log.size[row]

    def _move(self, row: int, nbytes: int) -> None:
        row = min(row, len(self._log))
        self._moved[row] = self._moved.get(row, 0) + nbytes
