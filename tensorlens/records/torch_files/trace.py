"""The trace of one device in a snapshot, event by event."""

from __future__ import annotations

from typing import Any, NamedTuple

from tensorlens.errors import FileFormatError
from tensorlens.records.events import (
    ALLOC,
    FREE,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    Context,
    Segment,
    SegmentBlock,
)
from tensorlens.records.torch_files.frames import StackReader
from tensorlens.records.torch_files.sizes import Rules

FREED = 6
"""Beside the kinds of events: a block is free for other requests. Its bytes count no longer from
:data:`~tensorlens.records.events.FREE` on, which comes first while another stream uses it."""

_KINDS = {
    "alloc": ALLOC,
    "free_requested": FREE,
    "free_completed": FREED,
    "segment_alloc": SEGMENT_ALLOC,
    "segment_map": SEGMENT_ALLOC,
    "segment_free": SEGMENT_FREE,
    "segment_unmap": SEGMENT_FREE,
    "oom": OOM,
}
_MAPPED = ("segment_map", "segment_unmap")
WRONG = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)
"""Errors raised by reading data of another form."""


class TraceEvent(NamedTuple):
    """One event of a trace."""

    kind: int
    """A kind of :mod:`tensorlens.records.events`, or :data:`FREED`."""
    address: int
    size: int
    """Bytes as the allocator rounds them; those of a segment as they are."""
    time: int
    """Microseconds since 1970; -1 where the trace has no times."""
    stack: int
    context: Context | None
    mapped: bool = False
    """A part of an expandable segment."""


def steps(trace: Any, rules: Rules, reader: StackReader) -> list[TraceEvent]:
    """Return the events of one device's trace."""
    found: list[TraceEvent] = []
    time = -1
    for event in trace:
        step = _step(event, time, rules, reader)
        if step is not None:
            time = step.time
            found.append(step)
    return found


def _step(event: Any, before: int, rules: Rules, reader: StackReader) -> TraceEvent | None:
    action = event["action"]
    kind = _KINDS.get(action)
    if kind is None:
        # "snapshot", "workspace_snapshot", and what torch may come to write
        return None
    size = event["size"]
    if kind in (ALLOC, FREE, FREED):
        size = rules.rounded(size)
    stack, context = reader.stack(event.get("frames"))
    address = event.get("device_free", 0) if kind == OOM else event["addr"]
    # the clock may be set back, the trace is in order all the same
    time = max(event["time_us"], before) if "time_us" in event else before
    return TraceEvent(kind, address, size, time, stack, context, action in _MAPPED)


def segments(listed: Any, reader: StackReader) -> list[Segment]:
    """Return the segments of a snapshot, those of the private pools included."""
    return [_segment(raw, reader) for raw in listed if raw["address"] is not None]


def _segment(raw: Any, reader: StackReader) -> Segment:
    address, size = raw["address"], raw["total_size"]
    made: list[SegmentBlock] = []
    place = address
    for block in raw["blocks"]:
        made.append(_block(block, place, reader))
        place = made[-1].address + made[-1].size
    pool = raw.get("segment_pool_id") or ()
    kind = raw.get("segment_type", "large")
    return Segment(
        device=device_name(raw.get("device", 0)),
        address=address,
        size=size,
        stream=raw.get("stream", 0),
        kind=kind if kind in ("large", "small") else "large",
        expandable=raw.get("is_expandable") is True,
        pool=str(tuple(pool)) if any(pool) else None,
        blocks=tuple(made),
        stack=reader.stack(raw.get("frames"))[0],
    )


def _block(raw: Any, place: int, reader: StackReader) -> SegmentBlock:
    size, state = raw["size"], raw["state"]
    requested = raw.get("requested_size", size)
    return SegmentBlock(
        address=raw.get("address", place),
        size=size,
        requested=requested if state.startswith("active") else 0,
        state=state if state in ("active_allocated", "inactive") else "active_pending_free",
        stack=reader.stack(raw.get("frames"))[0],
    )


def device_name(index: int) -> str:
    """Return the device with a number in a snapshot."""
    return f"cuda:{index}"


def damaged(what: str, error: Exception) -> FileFormatError:
    """Return the error that says that a file of torch is damaged."""
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return FileFormatError(f"damaged {what}: {reason[:100]}")
