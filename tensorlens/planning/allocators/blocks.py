"""Blocks, the pools of free ones, and the memory that the driver gave.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.13. Sizes are bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import NamedTuple

from tensorlens.planning.allocators.settings import LARGE_SEGMENT, Settings
from tensorlens.records.events import SEGMENT_ALLOC, SEGMENT_FREE, EventLog
from tensorlens.records.torch_files.sizes import SMALL_SEGMENT
from tensorlens.units import rounded_up

FREE, ALLOCATED, UNMAPPED = range(3)
"""A block can be handed out; is handed out; is address space of an expandable segment that has no
memory behind it."""

SHIFT = 64
ADDRESSES = (1 << SHIFT) - 1
FIRST_ADDRESS = 1 << 44
"""Where a simulated device's memory begins."""


@dataclass(slots=True, eq=False)
class Pool:
    """Free blocks, for small requests or for large ones."""

    small: bool
    keys: list[int] = field(default_factory=list)
    """Size and address of each free block in one number, in ascending order."""
    unmapped: list[int] = field(default_factory=list)
    """Addresses of unmapped blocks, in ascending order."""


class Reservation(NamedTuple):
    """Address space of an expandable segment; memory is mapped into it unit by unit."""

    address: int
    unit: int


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A piece of a segment; together with its neighbours it makes up the whole."""

    pool: Pool
    address: int
    size: int
    state: int
    requested: int = 0
    prev: Block | None = None
    next: Block | None = None
    reservation: Reservation | None = None
    row: int = -1
    stack: int = -1
    segment_stack: int = -1

    @property
    def split(self) -> bool:
        """Whether it is only a part of its segment."""
        return self.prev is not None or self.next is not None

    def follow(self, before: Block | None, after: Block | None) -> None:
        """Put the block between two others of its segment."""
        self.prev, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.prev = self


class Memory:
    """Memory that the allocator holds from the driver."""

    def __init__(
        self,
        settings: Settings,
        capacity: int | None,
        total: int | None,
        log: EventLog | None,
        device: str,
    ) -> None:
        self.settings = settings
        self.capacity = capacity
        self.total = total
        self.blocks: dict[int, Block] = {}
        """Every block by its address."""
        self.small, self.large = Pool(small=True), Pool(small=False)
        self.reserved = self.peak_reserved = 0
        self.stack = -1
        """The stack of what is going on, for the events of segments."""
        self._log, self._device = log, device
        self.next_address = FIRST_ADDRESS

    def insert(self, block: Block) -> None:
        """Put a block that is not handed out where searches find it."""
        insort(*_entry(block))

    def remove(self, block: Block) -> None:
        """Take a block out of its pool."""
        entries, entry = _entry(block)
        del entries[bisect_left(entries, entry)]

    def drop(self, block: Block) -> None:
        """Forget a block that is in its pool."""
        self.remove(block)
        del self.blocks[block.address]

    def free_blocks(self, pool: Pool) -> list[Block]:
        """Return a pool's free blocks, smallest first."""
        return [self.blocks[key & ADDRESSES] for key in pool.keys]

    def split(self, block: Block, size: int) -> None:
        """Make a block in its pool of what a block has beyond so many bytes."""
        rest = Block(block.pool, block.address + size, block.size - size, block.state)
        self.blocks[rest.address] = rest
        rest.reservation = block.reservation
        rest.follow(block, block.next)
        block.size = size
        self.insert(rest)

    def merge(self, block: Block, state: int) -> None:
        """Give a block that is in no pool a state, make it one with neighbours in the same one.

        And put it into its pool (``free_block``, ``try_merge_blocks``).
        """
        before, after = block.prev, block.next
        block.state, block.requested = state, 0
        if before is not None and before.state == state:
            self.drop(before)
            del self.blocks[block.address]
            block.address, block.size = before.address, before.size + block.size
            self.blocks[block.address] = block
            block.segment_stack = before.segment_stack
            block.follow(before.prev, after)
        if after is not None and after.state == state:
            self.drop(after)
            block.size += after.size
            block.follow(block.prev, after.next)
        self.insert(block)

    def find(self, pool: Pool, size: int) -> Block | None:
        """Take the smallest free block that fits out of its pool (``get_free_block``)."""
        settings, keys = self.settings, pool.keys
        index = bisect_left(keys, size << SHIFT)
        if index == len(keys):
            return None
        block = self.blocks[keys[index] & ADDRESSES]
        if settings.expandable_segments:
            index, block = self._least_room(keys, index, block)
        limit = settings.max_split_size
        if limit is not None:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + LARGE_SEGMENT:
                return None
        del keys[index]
        return block

    def _least_room(self, keys: list[int], index: int, block: Block) -> tuple[int, Block]:
        """Go on to larger blocks while they have less room, memory yet to be mapped included."""
        while block.reservation is not None and index + 1 < len(keys):
            following = self.blocks[keys[index + 1] & ADDRESSES]
            if _room(following) >= _room(block):
                break
            index, block = index + 1, following
        return index, block

    def address_space(self, size: int) -> int:
        """Return an address where a segment of so many bytes has room."""
        address = self.next_address
        self.next_address += rounded_up(size, SMALL_SEGMENT)
        return address

    def has(self, size: int) -> bool:
        """Tell whether the driver has so many bytes left."""
        return self.capacity is None or self.reserved + size <= self.capacity

    def take(self, pool: Pool, size: int) -> Block | None:
        """Take a segment from the driver; None where it has no room."""
        if not self.has(size):
            return None
        address = self.address_space(size)
        block = self.blocks[address] = Block(pool, address, size, FREE)
        block.segment_stack = self.stack
        self.took(address, size)
        return block

    def took(self, address: int, size: int) -> None:
        """Count memory from the driver, and note it."""
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self._note(SEGMENT_ALLOC, address, size)

    def gave(self, address: int, size: int) -> None:
        """Count memory that went back to the driver, and note it."""
        self.reserved -= size
        self._note(SEGMENT_FREE, address, size)

    def _note(self, kind: int, address: int, size: int) -> None:
        if self._log is not None:
            self._log.append(kind, self._device, address, size, 0, self.stack)

    def release(self, block: Block) -> None:
        """Give a segment back that is one free block (``release_block``)."""
        self.drop(block)
        self.gave(block.address, block.size)


def _entry(block: Block) -> tuple[list[int], int]:
    """Return the list of its pool that a block is in, and what stands there for it."""
    if block.state == UNMAPPED:
        return block.pool.unmapped, block.address
    return block.pool.keys, block.size << SHIFT | block.address


def _room(block: Block) -> int:
    after = block.next
    grows = after.size if after is not None and after.state == UNMAPPED else 0
    return block.size + grows
