"""How well the allocator's segments were used at the end of a recording."""

from __future__ import annotations

from tensorlens.recording.devices import chosen
from tensorlens.recording.recordings import Recording
from tensorlens.recording.segments import has_segments
from tensorlens.records.events import Segment
from tensorlens.records.moments import Fragmentation

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
