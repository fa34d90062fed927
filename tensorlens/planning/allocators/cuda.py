"""The caching allocator of torch for CUDA, without a device.

The rules are those of ``DeviceCachingAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp`` of torch
2.13: of expandable segments ``try_allocate_expandable_block``, ``map_block``, ``unmap_block``, of
what goes back ``release_blocks``. Left out are ``release_available_cached_blocks``, private pools
(CUDA graphs, ``torch.cuda.MemPool``) and streams: all blocks are of the default one.
"""

from __future__ import annotations

from bisect import bisect_left

from tensorlens.planning.allocators.simulated import (
    ADDRESSES,
    FREE,
    SHIFT,
    UNMAPPED,
    Block,
    Memory,
    Pool,
    SimulatedAllocator,
    SimulatedOutOfMemory,
)
from tensorlens.records.logs.events import EventLog
from tensorlens.records.torch_files.sizes import (
    LARGE_SEGMENT,
    SMALL,
    SMALL_SEGMENT,
    Rules,
    segment_size,
)
from tensorlens.units import rounded_up

_ADDRESS_SPACE = 1 << 40
"""Bytes of an expandable segment's address space: more than any card has. torch reserves an eighth
more than the card's memory, which is as good unless the address space is fragmented."""


class CachingAllocator(SimulatedAllocator):
    """Hands out addresses as torch's caching allocator does on one device.

    Args:
        rules: what ``PYTORCH_CUDA_ALLOC_CONF`` sets.
        capacity: bytes that the driver has for this allocator, what other users of the card and
            the CUDA context take left out; None: no end.
        log: where every event is written; None: nowhere.
        device: the device's name in the log, and in errors.
    """

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        capacity: int | None = None,
        log: EventLog | None = None,
        device: str = "cuda:0",
    ) -> None:
        super().__init__(capacity, log, device)
        self.rules = Rules() if rules is None else rules

    def empty_cache(self) -> None:
        """Give all segments that are not in use back to the driver."""
        self._memory.stack = -1
        _release_cached(self._memory)

    def _obtain(self, nbytes: int) -> tuple[Block, int]:
        memory, rules = self._memory, self.rules
        size = rules.rounded(nbytes)
        small = size <= SMALL
        pool = memory.small if small else memory.large
        block = self._take_free(pool, size) or self._new(pool, size)
        if rules.splits(size, block.size - size, small=small):
            memory.split(block, size)
        return block, size

    def _take_free(self, pool: Pool, size: int) -> Block | None:
        """Take the free block for a request out of its pool (``get_free_block``)."""
        blocks, keys = self._memory.blocks, pool.keys
        index = bisect_left(keys, size << SHIFT)
        if index == len(keys):
            return None
        block = blocks[keys[index] & ADDRESSES]
        # of an expandable segment the one with the least room, memory yet to be mapped included
        while block.base is not None and index + 1 < len(keys):
            following = blocks[keys[index + 1] & ADDRESSES]
            if _room(following) >= _room(block):
                break
            index, block = index + 1, following
        limit = self.rules.max_split_size
        if limit is not None:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + LARGE_SEGMENT:
                return None
        del keys[index]
        return block

    def _new(self, pool: Pool, size: int) -> Block:
        """Return a free block that is in no pool, from the driver."""
        memory = self._memory
        block = self._take(pool, size)
        if block is None:
            _release_cached(memory)
            block = self._take(pool, size)
        if block is None:
            raise SimulatedOutOfMemory(self.device, size)
        return block

    def _take(self, pool: Pool, size: int) -> Block | None:
        if self.rules.expandable_segments:
            return _grow(self._memory, pool, size)
        return self._memory.take(pool, segment_size(size))


def _room(block: Block) -> int:
    after = block.next
    grows = after.size if after is not None and after.state == UNMAPPED else 0
    return block.size + grows


def _grow(memory: Memory, pool: Pool, size: int) -> Block | None:
    """Map memory until there is a free block of so many bytes, and take it out of its pool.

    Returns None where the driver has no room; what was mapped until then stays as free memory.
    """
    block = _candidate(memory, pool, size)
    if block.state == UNMAPPED and not _map(memory, block, min(block.size, size)):
        return None
    while block.size < size:
        after = block.next
        if after is None or not _map(memory, after, min(size - block.size, after.size)):
            return None
        block = after
    memory.remove(block)
    return block


def _unit(pool: Pool) -> int:
    """Return the bytes that are mapped into an expandable segment at once."""
    return SMALL_SEGMENT if pool.small else LARGE_SEGMENT


def _shrink(memory: Memory, block: Block) -> None:
    """Unmap the whole units in a free block; address space without any memory is given up."""
    base, unit = block.base, _unit(block.pool)
    assert base is not None
    begin = base + rounded_up(block.address - base, unit)
    end = base + (block.address + block.size - base) // unit * unit
    if begin >= end:
        return
    memory.remove(block)
    if block.address < begin:
        memory.split(block, begin - block.address)
        memory.insert(block)
        block = memory.blocks[begin]
        memory.remove(block)
    if end < block.address + block.size:
        memory.split(block, end - begin)
    memory.count_returned(begin, end - begin)
    memory.merge(block, UNMAPPED)
    if not block.is_split:
        memory.drop(block)


def _reserve(memory: Memory, pool: Pool, size: int) -> Block:
    """Reserve address space, all of it unmapped."""
    extent = rounded_up(max(_ADDRESS_SPACE, size), _unit(pool))
    address = memory.reserve_addresses(extent)
    block = memory.blocks[address] = Block(pool, address, extent, UNMAPPED, base=address)
    memory.insert(block)
    return block


def _candidate(memory: Memory, pool: Pool, size: int) -> Block:
    """Return the lowest free or unmapped block that begins enough address space."""
    for address in pool.unmapped:
        block = memory.blocks[address]
        if block.prev is not None and block.prev.state == FREE:
            block = block.prev
        if _has_space(block, size):
            return block
    return _reserve(memory, pool, size)


def _has_space(block: Block | None, size: int) -> bool:
    found = 0
    while found < size and block is not None and block.state in (FREE, UNMAPPED):
        found += block.size
        block = block.next
    return found >= size


def _map(memory: Memory, block: Block, size: int) -> bool:
    mapped = rounded_up(size, _unit(block.pool))
    if not memory.has(mapped):
        return False
    memory.remove(block)
    if mapped < block.size:
        memory.split(block, mapped)
    memory.count_reserved(block.address, mapped)
    memory.merge(block, FREE)
    if block.prev is None and block.segment_stack < 0:
        block.segment_stack = memory.stack
    return True


def _release_cached(memory: Memory) -> None:
    """Give back every segment that is not in use at all, and the unused units of expandable ones.

    The large pool comes first.
    """
    for pool in (memory.large, memory.small):
        expandable = []
        for block in memory.free_blocks(pool):
            if block.base is not None:
                expandable.append(block)
            elif not block.is_split:
                memory.release(block)
        for block in expandable:
            _shrink(memory, block)
