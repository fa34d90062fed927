"""Walks a log: bytes handed out after each event, and the blocks they are."""

from __future__ import annotations

from array import array
from itertools import accumulate, islice

from tensorlens.records.events import FREE, EventLog


def levels(log: EventLog, device: int) -> array[int]:
    """Return the bytes handed out on a device, by its number, after each row.

    A free whose allocation is not in the log changes nothing: its block was not counted either.
    """
    sizes = log.size
    if len(log.devices) == 1 and device == 0:
        changes = (
            size if kind < FREE else -sizes[pair] if kind == FREE and pair >= 0 else 0
            for kind, size, pair in zip(log.kind, sizes, log.pair, strict=True)
        )
    else:
        changes = (
            0
            if here != device
            else size
            if kind < FREE
            else -sizes[pair]
            if kind == FREE and pair >= 0
            else 0
            for kind, size, pair, here in zip(log.kind, sizes, log.pair, log.device, strict=True)
        )
    return array("q", accumulate(changes))


def highest(log: EventLog, after: array[int]) -> tuple[int, int]:
    """Return the highest of :func:`levels` and its first row; -1 where it was so at the start."""
    top = max(after, default=0)
    if top == 0:
        return 0, -1
    row = after.index(top)
    return top, -1 if row < log.starts else row


def residents(log: EventLog, device: int | None, row: int) -> list[int]:
    """Return the allocations of a device, or of all, that were not freed by the end of ``row``."""
    last = max(row, log.starts - 1)
    rows = zip(log.kind, log.pair, log.device, strict=True)
    if device is None or (len(log.devices) == 1 and device == 0):
        return [
            number
            for number, (kind, pair, _) in enumerate(islice(rows, last + 1))
            if kind < FREE and not 0 <= pair <= last
        ]
    return [
        number
        for number, (kind, pair, here) in enumerate(islice(rows, last + 1))
        if kind < FREE and here == device and not 0 <= pair <= last
    ]
