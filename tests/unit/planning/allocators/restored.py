"""A simulated allocator that begins where a snapshot ends, so that real traces can be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

from tensorlens.planning.allocators import ALLOCATED, FREE, Block, CachingAllocator
from tensorlens.records import START, Segment

SEGMENTS = 2 << 20
"""Bytes that addresses of segments are multiples of."""
CODES = {"inactive": FREE, "active_allocated": ALLOCATED}


def restore(allocator: CachingAllocator, found: Iterable[Segment]) -> None:
    """Hold the segments of a snapshot, and hand out what it has handed out.

    Blocks that were handed out are in the log as having been there before the recording.
    """
    for block in _restored(allocator, found):
        allocator._requested += block.requested
        allocator._allocated += block.size
        if allocator.log is not None:
            size = min(allocator.rules.rounded(block.requested), block.size)
            log, stack = allocator.log, block.stack
            block.row = log.append(START, allocator.device, block.address, size, 0, stack)
            if size < block.size:
                log.held[block.row] = block.size
    allocator.reset_peaks()


def _restored(allocator: CachingAllocator, found: Iterable[Segment]) -> list[Block]:
    """Put segments into an empty allocator and return the blocks that are not free."""
    active: list[Block] = []
    for segment in sorted(found, key=attrgetter("address")):
        assert not segment.expandable and segment.pool is None
        blocks = list(_blocks(allocator, segment))
        ends = [segment.address, *(block.address + block.size for block in blocks)]
        assert [block.address for block in blocks] == ends[:-1]
        assert ends[-1] == segment.address + segment.size
        for before, block in zip([None, *blocks], blocks, strict=False):
            block.follow(before, None)
        for block in blocks:
            if block.state != FREE:
                active.append(block)
                continue
            allocator._insert(block)
        allocator.reserved += segment.size
        end = -(-(segment.address + segment.size) // SEGMENTS) * SEGMENTS
        allocator.next_address = max(allocator.next_address, end)
    return active


def _blocks(allocator: CachingAllocator, segment: Segment) -> Iterator[Block]:
    assert not segment.stream
    pool = allocator.small if segment.kind == "small" else allocator.large
    for each in segment.blocks:
        block = Block(pool, each.address, each.size, CODES[each.state])
        block.requested, block.stack = each.requested, each.stack
        block.segment_stack = segment.stack
        allocator.blocks[block.address] = block
        yield block
