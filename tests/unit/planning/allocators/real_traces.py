"""Real traces as requests: what was there when they began, and what was asked for then."""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from pathlib import Path

import pytest

from tensorlens import Recording
from tensorlens.records import START, Segment, SegmentBlock, from_snapshot, unpickle

FOLDER = Path(__file__).parents[4].parent / "shared" / "data"


@dataclass
class Trace:
    before: list[Segment]
    """What the allocator held when the trace began."""
    after: list[Segment]
    events: list[dict]
    recording: object


def raw(name: str):
    """Return a measured snapshot, or a published one, which is compressed."""
    is_published = name.endswith(".xz")
    path = FOLDER / ("snapshots_published" if is_published else "snapshots") / name
    if not path.is_file():
        pytest.skip(f"the measured snapshots are not beside the checkout: no {name}")
    content = path.read_bytes()
    return unpickle(lzma.decompress(content) if is_published else content)


def read(name: str) -> Trace:
    snapshot = raw(name)
    log, origin = from_snapshot(snapshot)
    events = snapshot["device_traces"][0]
    taken = {each["addr"] for each in events if each["action"] == "segment_alloc"}
    assert not any(each["action"] == "segment_free" for each in events)
    there = {
        log.address[row]: (log.held.get(row, log.size[row]), log.size[row])
        for row, kind in enumerate(log.kind)
        if kind == START
    }
    before = [filled(each, there) for each in log.segments if each.address not in taken]
    return Trace(before, list(log.segments), events, Recording(log, origin))


def filled(segment: Segment, there: dict[int, tuple[int, int]]) -> Segment:
    """Return a segment with these blocks in it (address to bytes and bytes asked for)."""
    end = segment.address + segment.size
    blocks, place = [], segment.address
    for address in sorted(address for address in there if segment.address <= address < end):
        size, requested = there[address]
        if place < address:
            blocks.append(SegmentBlock(place, address - place, 0, "inactive"))
        blocks.append(SegmentBlock(address, size, requested, "active_allocated"))
        place = address + size
    if place < end:
        blocks.append(SegmentBlock(place, end - place, 0, "inactive"))
    return Segment(
        segment.device,
        segment.address,
        segment.size,
        segment.stream,
        segment.kind,
        blocks=tuple(blocks),
    )
