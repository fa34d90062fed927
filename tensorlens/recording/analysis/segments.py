"""The allocator's own figures at an instant: remainders, and memory from the driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from tensorlens.recording.analysis.devices import chosen
from tensorlens.recording.moments import Fragmentation
from tensorlens.recording.recordings import Recording
from tensorlens.records.events import SEGMENT_ALLOC, SEGMENT_FREE, EventLog, Segment


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


_FREE = "inactive"


def fragmentation(recording: Recording, device: str | None = None) -> Fragmentation | None:
    """Return how a device's segments were used; None where they are not known.

    ``reserved`` is ``held`` and ``free`` together: a block whose free a stream still waits for
    cannot be handed out and counts as held, what a segment lists no block for as free.

    Raises:
        UsageError: the recording knows no such device, or none at all.
    """
    device = chosen(recording, device)
    if not has_segments(recording.log, device):
        return None
    segments = [each for each in recording.log.segments if each.device == device]
    pieces = [_free_pieces(segment) for segment in segments]
    reserved, free = sum(each.size for each in segments), sum(map(sum, pieces))
    return Fragmentation(
        device=device,
        reserved=reserved,
        held=reserved - free,
        requested=sum(
            block.requested for each in segments for block in each.blocks if block.state != _FREE
        ),
        free=free,
        largest_free=max((piece for each in pieces for piece in each), default=0),
        inactive_split=sum(
            sum(each)
            for segment, each in zip(segments, pieces, strict=True)
            if any(block.state != _FREE for block in segment.blocks)
        ),
        segments=len(segments),
    )


def _free_pieces(segment: Segment) -> list[int]:
    unlisted = segment.size - sum(block.size for block in segment.blocks)
    free = [block.size for block in segment.blocks if block.state == _FREE]
    return [*free, unlisted] if unlisted > 0 else free
