"""The segments that an allocator holds, as records."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from tensorlens.planning.allocators.blocks import ALLOCATED, FREE, PENDING, UNMAPPED, Block, Memory
from tensorlens.recording.moments import Fragmentation
from tensorlens.records.events import Segment, SegmentBlock

_STATES = {FREE: "inactive", ALLOCATED: "active_allocated", PENDING: "active_pending_free"}


def segments(memory: Memory, device: str) -> tuple[Segment, ...]:
    """Return the segments in the order of their addresses."""
    made = []
    for blocks in _stretches(memory):
        first = blocks[0]
        made.append(
            Segment(
                device=device,
                address=first.address,
                size=sum(block.size for block in blocks),
                stream=first.pool.stream,
                kind="small" if first.pool.small else "large",
                expandable=first.reservation is not None,
                blocks=tuple(
                    SegmentBlock(
                        address=block.address,
                        size=block.size,
                        requested=block.requested,
                        state=_STATES[block.state],
                        stack=-1 if block.state == FREE else block.stack,
                    )
                    for block in blocks
                ),
                stack=first.segment_stack,
            )
        )
    return tuple(made)


def fragmentation(memory: Memory, device: str) -> Fragmentation:
    """Return how well the segments are used."""
    stretches = list(_stretches(memory))
    free = [[block.size for block in each if block.state == FREE] for each in stretches]
    unused = sum(map(sum, free))
    return Fragmentation(
        device=device,
        reserved=memory.reserved,
        held=memory.reserved - unused,
        requested=sum(block.requested for each in stretches for block in each),
        free=unused,
        largest_free=max((size for each in free for size in each), default=0),
        inactive_split=sum(
            sum(sizes)
            for blocks, sizes in zip(stretches, free, strict=True)
            if len(sizes) < len(blocks)
        ),
        segments=len(stretches),
    )


def _stretches(memory: Memory) -> Iterator[list[Block]]:
    """Give the blocks of each segment, or of each mapped stretch of an expandable one."""
    heads = [
        block
        for block in memory.blocks.values()
        if block.state != UNMAPPED and (block.prev is None or block.prev.state == UNMAPPED)
    ]
    for head in sorted(heads, key=attrgetter("address")):
        blocks: list[Block] = []
        block: Block | None = head
        while block is not None and block.state != UNMAPPED:
            blocks.append(block)
            block = block.next
        yield blocks
