"""The caching allocator of torch for CUDA, without a device.

The rules are those of ``DeviceCachingAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp`` of torch
2.13: of expandable segments ``try_allocate_expandable_block``, ``map_block``, ``unmap_block``, of
what goes back ``release_available_cached_blocks`` and ``release_blocks``. Private pools (CUDA
graphs, ``torch.cuda.MemPool``) are left out, and blocks that wait for another stream
(``Tensor.record_stream``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from tensorlens.planning.allocators.blocks import (
    FREE,
    SHIFT,
    UNMAPPED,
    Block,
    Memory,
    Pool,
    Reservation,
)
from tensorlens.planning.allocators.settings import Settings
from tensorlens.planning.allocators.simulated import NoRoom, SimulatedAllocator
from tensorlens.records.events import EventLog
from tensorlens.records.torch_files.sizes import SMALL, SMALL_SEGMENT

_UNLIMITED = 1 << 40
"""Bytes of address space where the card's memory is not known."""


class CachingAllocator(SimulatedAllocator):
    """Hands out addresses as torch's caching allocator does on one device.

    Args:
        settings: what ``PYTORCH_CUDA_ALLOC_CONF`` would set.
        capacity: bytes that the driver has for this allocator, what other users of the card and
            the CUDA context take left out; None: no end.
        total: bytes of memory that the card has, for the address space of expandable
            segments; by default the capacity.
        log: where every event is written; None: nowhere.
        device: the device's name in the log, and in errors.
        place: told a segment's bytes, returns the address where the driver puts it; by default
            each follows the one before.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        capacity: int | None = None,
        total: int | None = None,
        log: EventLog | None = None,
        device: str = "cuda:0",
        place: Callable[[int], int] | None = None,
    ) -> None:
        settings = Settings() if settings is None else settings
        total = capacity if total is None else total
        super().__init__(settings, capacity, total, log, device, place)
        self._rules = settings.rules
        self._expandable = settings.expandable_segments

    def empty_cache(self, *, stack: int = -1) -> None:
        """Give all segments that are not in use back to the driver."""
        self._memory.stack = stack
        _release_cached(self._memory)

    def _obtain(self, nbytes: int, stream: int) -> tuple[Block, int]:
        memory, rules = self._memory, self._rules
        size = rules.rounded(nbytes)
        small = size <= SMALL
        pool = memory.pool(stream, small)
        block = memory.find(pool, size) or self._new(pool, size)
        if rules.splits(size, block.size - size, small=small):
            memory.split(block, size)
        return block, size

    def _new(self, pool: Pool, size: int) -> Block:
        """Return a free block that is in no pool, from the driver."""
        memory = self._memory
        block = self._take(pool, size)
        if block is None and _release_oversize(memory, pool, size):
            block = self._take(pool, size)
        if block is None:
            _release_cached(memory)
            block = self._take(pool, size)
        if block is None:
            raise NoRoom(self.device, size)
        return block

    def _take(self, pool: Pool, size: int) -> Block | None:
        if self._expandable:
            return _grow(self._memory, pool, size)
        return self._memory.take(pool, self.settings.segment_size(size))


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


def _shrink(memory: Memory, block: Block) -> None:
    """Unmap the whole units in a free block; address space without any memory is given up."""
    reservation = block.reservation
    assert reservation is not None
    base, unit = reservation.address, reservation.unit
    begin = base + -(-(block.address - base) // unit) * unit
    end = base + (block.address + block.size - base) // unit * unit
    if begin >= end:
        return
    memory.remove(block)
    del memory.blocks[block.address]
    if block.address < begin:
        before = _piece(memory, block, block.address, begin - block.address, FREE)
        before.segment_stack = block.segment_stack
        before.follow(block.prev, block)
        memory.insert(before)
    if end < block.address + block.size:
        after = _piece(memory, block, end, block.address + block.size - end, FREE)
        after.follow(block, block.next)
        memory.insert(after)
    memory.gave(begin, end - begin)
    block.address, block.size, block.state = begin, end - begin, UNMAPPED
    _absorb(memory, block)
    memory.blocks[block.address] = block
    if block.split:
        insort(block.pool.unmapped, block.address)
    else:
        del memory.blocks[block.address]


def _reserve(memory: Memory, pool: Pool, size: int) -> Block:
    """Reserve address space for an eighth more than the card has, all of it unmapped."""
    unit = SMALL_SEGMENT if pool.small else memory.settings.large_segment_size
    total = max(_UNLIMITED, size) if memory.total is None else memory.total + memory.total // 8
    extent = -(-total // unit) * unit
    reservation = Reservation(memory.address_space(extent), extent, unit)
    block = Block(pool, reservation.address, extent, UNMAPPED)
    block.reservation = reservation
    memory.blocks[block.address] = block
    insort(pool.unmapped, block.address)
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
    reservation = block.reservation
    assert reservation is not None
    mapped = -(-size // reservation.unit) * reservation.unit
    if not memory.has(mapped):
        return False
    unmapped = block.pool.unmapped
    del unmapped[bisect_left(unmapped, block.address)]
    if mapped < block.size:
        address = block.address + mapped
        rest = _piece(memory, block, address, block.size - mapped, UNMAPPED)
        rest.follow(block, block.next)
        insort(unmapped, address)
        block.size = mapped
    memory.took(block.address, mapped)
    block.state = FREE
    del memory.blocks[block.address]
    _absorb(memory, block)
    memory.blocks[block.address] = block
    if block.prev is None and block.segment_stack < 0:
        block.segment_stack = memory.stack
    memory.insert(block)
    return True


def _piece(memory: Memory, block: Block, address: int, size: int, state: int) -> Block:
    made = Block(block.pool, address, size, state)
    made.reservation = block.reservation
    memory.blocks[address] = made
    return made


def _absorb(memory: Memory, block: Block) -> None:
    """Make one block of a block, which is in no pool, and its neighbours in the same state."""
    before, after = block.prev, block.next
    if before is not None and before.state == block.state:
        _drop(memory, before)
        block.address, block.size = before.address, before.size + block.size
        block.segment_stack = before.segment_stack
        block.follow(before.prev, after)
    if after is not None and after.state == block.state:
        _drop(memory, after)
        block.size += after.size
        block.follow(block.prev, after.next)


def _drop(memory: Memory, block: Block) -> None:
    if block.state == FREE:
        memory.remove(block)
    else:
        unmapped = block.pool.unmapped
        del unmapped[bisect_left(unmapped, block.address)]
    del memory.blocks[block.address]


def _release_oversize(memory: Memory, pool: Pool, size: int) -> bool:
    """Give back blocks too large to be split until a request of so many bytes has room.

    One that is large enough, else the largest ones first; tell whether it was enough.
    """
    limit = memory.settings.max_split_size
    if limit is None:
        return False
    wanted = max(size, limit)
    blocks = memory.free_blocks(pool)
    index = bisect_left(pool.keys, wanted << SHIFT)
    if index < len(blocks) and blocks[index].reservation is None:
        memory.release(blocks[index])
        return True
    released = 0
    for block in reversed(blocks[:index]):
        if released >= wanted or block.size < limit:
            break
        if block.reservation is None:
            released += block.size
            memory.release(block)
    return released >= wanted


def _release_cached(memory: Memory) -> None:
    """Give back every segment that is not in use at all, and the unused units of expandable ones.

    Of the large pools first.
    """
    for small in (False, True):
        expandable = []
        for pool in memory.pools(small=small):
            for block in memory.free_blocks(pool):
                if block.reservation is not None:
                    expandable.append(block)
                elif not block.split:
                    memory.release(block)
        for block in expandable:
            _shrink(memory, block)
