"""The segments that an allocator holds as records, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

from tensorlens.allocators.blocks import ALLOCATED, FREE, PENDING, UNMAPPED, Block, Memory
from tensorlens.errors import UsageError
from tensorlens.records.events import Segment, SegmentBlock
from tensorlens.records.moments import Fragmentation

_STATES = {FREE: "inactive", ALLOCATED: "active_allocated", PENDING: "active_pending_free"}
_CODES = {state: code for code, state in _STATES.items()}


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


def restore(memory: Memory, found: Iterable[Segment]) -> list[Block]:
    """Put segments into an empty memory and return the blocks that are not free.

    Raises:
        UsageError: a segment's blocks do not fill it, or it is of a kind that is not simulated.
    """
    active: list[Block] = []
    for segment in sorted(found, key=attrgetter("address")):
        where = f"the segment at {segment.address:#x}"
        if segment.expandable or segment.pool is not None:
            kind = "is expandable" if segment.expandable else "belongs to a private pool"
            raise UsageError(f"{where} {kind}: the simulation cannot begin from it")
        blocks = list(_restored(memory, segment))
        ends = [segment.address, *(block.address + block.size for block in blocks)]
        if [block.address for block in blocks] != ends[:-1] or (
            ends[-1] != segment.address + segment.size
        ):
            raise UsageError(f"{where} is not filled by its blocks")
        for before, block in zip([None, *blocks], blocks, strict=False):
            block.follow(before, None)
        for block in blocks:
            if block.state != FREE:
                active.append(block)
                continue
            memory.insert(block)
            memory.split_bytes += block.size if block.split else 0
        memory.segments += 1
        memory.reserved += segment.size
        memory.keep_clear(segment.address + segment.size)
    return active


def _restored(memory: Memory, segment: Segment) -> Iterator[Block]:
    pool = memory.pool(segment.stream, segment.kind == "small")
    for each in segment.blocks:
        block = Block(pool, each.address, each.size, _CODES[each.state])
        block.requested, block.stack = each.requested, each.stack
        if block.state == PENDING:
            # which stream it waits for is not in a snapshot
            block.uses = {-1}
        block.segment_stack = segment.stack
        memory.blocks[block.address] = block
        yield block


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
