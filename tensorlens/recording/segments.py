"""What the allocator itself counts at an instant: remainders, and memory from the driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from tensorlens.records.events import SEGMENT_ALLOC, SEGMENT_FREE, EventLog


def has_segments(log: EventLog, device: str) -> bool:
    """Tell whether the segments of a device's allocator are known."""
    if not log.segments_known or device not in log.devices:
        return False
    if any(segment.device == device for segment in log.segments):
        return True
    number = log.devices.index(device)
    events = SEGMENT_ALLOC in log.kind or SEGMENT_FREE in log.kind
    return events and any(
        here == number and kind in (SEGMENT_ALLOC, SEGMENT_FREE)
        for kind, here in zip(log.kind, log.device, strict=True)
    )


def held_at(log: EventLog, device: str, rows: Iterable[int]) -> int | None:
    """Return the bytes set aside for blocks, remainders included; None where that is unknown."""
    if not has_segments(log, device):
        number = log.devices.index(device) if device in log.devices else -1
        if not any(log.device[row] == number for row in log.held):
            return None
    held, sizes = log.held, log.size
    return sum(held.get(row, sizes[row]) for row in rows)


def reserved_at(log: EventLog, device: str, row: int) -> int | None:
    """Return what the allocator held from the driver after an event; None where unknown.

    It follows from the segments at the end, back through the events of segments.
    """
    levels = reserved_levels(log, device)
    return None if levels is None else levels[row + 1]


def reserved_levels(log: EventLog, device: str) -> Sequence[int] | None:
    """Return what the allocator held from the driver at the start, then after each event."""
    if not has_segments(log, device):
        return None
    number = log.devices.index(device)
    signs = {SEGMENT_ALLOC: 1, SEGMENT_FREE: -1}
    changes = [
        signs.get(kind, 0) * size if here == number else 0
        for kind, size, here in zip(log.kind, log.size, log.device, strict=True)
    ]
    end = sum(segment.size for segment in log.segments if segment.device == device)
    return list(accumulate(changes, initial=end - sum(changes)))
