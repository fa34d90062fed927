"""What simulated allocators share: blocks, pools of free blocks, segments and figures.

Subclasses decide where a block comes from and what is returned to the driver. The rules are those
of ``c10/cuda/CUDACachingAllocator.cpp`` in torch 2.13. Sizes are in bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from operator import attrgetter

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.records.logs import events
from tensorlens.records.logs.events import Context, EventLog, Segment, SegmentBlock
from tensorlens.records.torch_files.sizes import SMALL_SEGMENT
from tensorlens.units import format_bytes, rounded_up

FREE, ALLOCATED, UNMAPPED = range(3)
"""States of a block. An unmapped one is address space of an expandable segment without memory."""

SHIFT = 64
ADDRESSES = (1 << SHIFT) - 1
"""Mask of the address in a key of :class:`Pool`, which is ``size << SHIFT | address``."""
FIRST_ADDRESS = 1 << 44
"""Start of a simulated device's memory."""


@dataclass(frozen=True, slots=True)
class Level:
    """A figure's value now, and its highest since the start or the last reset."""

    current: int
    peak: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of an allocator, in bytes."""

    allocated: Level
    """Blocks in use, with their remainders: torch's ``allocated_bytes.all``, TensorFlow's
    ``get_memory_info``."""
    requested: Level
    """Requests for these blocks: ``requested_bytes.all``."""
    reserved: Level
    """Memory from the driver: ``reserved_bytes.all``, ``pool_bytes``."""


class SimulatedOutOfMemory(TensorlensError):
    """A request exceeds the memory that the allocator may take."""

    exit_code = 3

    def __init__(self, device: str, nbytes: int) -> None:
        super().__init__(f"{device} has no room for {format_bytes(nbytes)}")


@dataclass(slots=True, eq=False)
class Pool:
    """Free blocks for small requests, or for large ones."""

    small: bool
    keys: list[int] = field(default_factory=list)
    """Keys of the free blocks, ascending: smallest first, then lowest address."""
    unmapped: list[int] = field(default_factory=list)
    """Addresses of unmapped blocks, ascending."""


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A piece of a segment, linked to its neighbours."""

    pool: Pool
    address: int
    size: int
    state: int
    requested: int = 0
    prev: Block | None = None
    next: Block | None = None
    base: int | None = None
    """Start of the address space, if the segment is expandable."""
    row: int = -1
    """Row of its allocation in the log."""
    stack: int = -1
    segment_stack: int = -1
    """Stack of the request for which its segment was taken from the driver."""

    @property
    def is_split(self) -> bool:
        """Whether it is not the whole segment."""
        return self.prev is not None or self.next is not None

    def follow(self, before: Block | None, after: Block | None) -> None:
        """Link the block between two others of its segment."""
        self.prev, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.prev = self


class SimulatedAllocator:
    """Serves requests on one device without memory, and logs them.

    It is deterministic: the same requests get the same addresses.
    """

    def __init__(self, capacity: int | None, log: EventLog | None, device: str) -> None:
        self.capacity = capacity
        self.log = log
        self.device = device
        self.blocks: dict[int, Block] = {}
        """Every block by its address."""
        self.small, self.large = Pool(small=True), Pool(small=False)
        self.reserved = self._peak_reserved = 0
        self.next_address = FIRST_ADDRESS
        self._stack = -1
        """Stack of the current request, for the events of segments."""
        self._allocated = self._peak_allocated = 0
        self._requested = self._peak_requested = 0

    def malloc(self, nbytes: int, *, stack: int = -1, context: Context | None = None) -> int:
        """Allocate a block and return its address; 0 for a request of 0 bytes.

        Args:
            nbytes: bytes requested.
            stack: number of the stack in the log.
            context: the operator, node and thread for the log.

        Raises:
            SimulatedOutOfMemory: there is no room, even after unused memory was returned.
            UsageError: a negative number of bytes.
        """
        if nbytes <= 0:
            if nbytes < 0:
                raise UsageError(f"cannot allocate {nbytes} bytes")
            return 0
        self._stack = stack
        block, size = self._obtain(nbytes)
        block.state, block.requested = ALLOCATED, nbytes
        self._allocated = allocated = self._allocated + block.size
        if allocated > self._peak_allocated:
            self._peak_allocated = allocated
        self._requested = requested = self._requested + nbytes
        if requested > self._peak_requested:
            self._peak_requested = requested
        log = self.log
        if log is not None:
            block.stack = stack
            block.row = log.append(
                events.ALLOC, self.device, block.address, size, 0, stack, context
            )
            if block.size > size:
                log.held[block.row] = block.size
        return block.address

    def free(self, address: int, *, stack: int = -1, context: Context | None = None) -> None:
        """Free a block; ``stack`` and ``context`` as in :meth:`malloc`. Address 0 is ignored."""
        if not address:
            return
        block = self.blocks.get(address)
        if block is None or block.state != ALLOCATED:
            raise UsageError(f"{self.device}: no block is handed out at address {address:#x}")
        self._allocated -= block.size
        self._requested -= block.requested
        log = self.log
        if log is not None:
            log.append(events.FREE, self.device, address, log.size[block.row], 0, stack, context)
        self._merge(block, FREE)

    def empty_cache(self) -> None:
        """Return unused memory to the driver; TensorFlow keeps its regions."""

    def _obtain(self, nbytes: int) -> tuple[Block, int]:
        """Return a block taken out of its pool and split, and the rounded size of the request."""
        raise NotImplementedError

    @property
    def figures(self) -> Figures:
        """Current and peak figures."""
        return Figures(
            allocated=Level(self._allocated, self._peak_allocated),
            requested=Level(self._requested, self._peak_requested),
            reserved=Level(self.reserved, self._peak_reserved),
        )

    def reset_peaks(self) -> None:
        """Set every peak to its current value."""
        self._peak_allocated, self._peak_requested = self._allocated, self._requested
        self._peak_reserved = self.reserved

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments by address; of an expandable one each run of mapped blocks."""
        heads = [
            block
            for block in self.blocks.values()
            if block.state != UNMAPPED and (block.prev is None or block.prev.state == UNMAPPED)
        ]
        heads.sort(key=attrgetter("address"))
        return tuple(_segment(self.device, head) for head in heads)

    def write_segments(self) -> None:
        """Replace the device's segments in the log by the current ones."""
        log = self.log
        if log is None:
            return
        log.devices.number(self.device)
        others = [each for each in log.segments if each.device != self.device]
        log.segments = [*others, *self.segments()]
        log.segments_known = True

    def _insert(self, block: Block) -> None:
        """Add a free or unmapped block to its pool."""
        insort(*_entry(block))

    def _remove(self, block: Block) -> None:
        """Remove a block from its pool."""
        entries, entry = _entry(block)
        del entries[bisect_left(entries, entry)]

    def _drop(self, block: Block) -> None:
        """Remove a block from its pool and from the table of blocks."""
        self._remove(block)
        del self.blocks[block.address]

    def _free_blocks(self, pool: Pool) -> list[Block]:
        """Return a pool's free blocks, smallest first."""
        return [self.blocks[key & ADDRESSES] for key in pool.keys]

    def _split(self, block: Block, size: int) -> None:
        """Cut a block down to ``size`` and add the rest to its pool."""
        rest = Block(
            block.pool, block.address + size, block.size - size, block.state, base=block.base
        )
        self.blocks[rest.address] = rest
        rest.follow(block, block.next)
        block.size = size
        self._insert(rest)

    def _merge(self, block: Block, state: int) -> None:
        """Free or unmap a block, join it with neighbours in the same state, and add it to its pool.

        ``free_block`` and ``try_merge_blocks``.
        """
        before, after = block.prev, block.next
        block.state, block.requested = state, 0
        if before is not None and before.state == state:
            self._drop(before)
            del self.blocks[block.address]
            block.address, block.size = before.address, before.size + block.size
            self.blocks[block.address] = block
            block.segment_stack = before.segment_stack
            block.follow(before.prev, after)
        if after is not None and after.state == state:
            self._drop(after)
            block.size += after.size
            block.follow(block.prev, after.next)
        self._insert(block)

    def _take_smallest(self, pool: Pool, size: int) -> Block | None:
        """Remove the smallest free block that fits from its pool and return it."""
        index = bisect_left(pool.keys, size << SHIFT)
        if index == len(pool.keys):
            return None
        return self.blocks[pool.keys.pop(index) & ADDRESSES]

    def _reserve_addresses(self, size: int) -> int:
        """Return the address of a new segment."""
        address = self.next_address
        self.next_address += rounded_up(size, SMALL_SEGMENT)
        return address

    def _has_room(self, size: int) -> bool:
        """Tell whether the driver has this many bytes left."""
        return self.capacity is None or self.reserved + size <= self.capacity

    def _take_segment(self, pool: Pool, size: int) -> Block | None:
        """Return a new segment as one free block; None if the driver has no room."""
        if not self._has_room(size):
            return None
        address = self._reserve_addresses(size)
        block = self.blocks[address] = Block(pool, address, size, FREE)
        block.segment_stack = self._stack
        self._count_reserved(address, size)
        return block

    def _count_reserved(self, address: int, size: int) -> None:
        """Count and log memory from the driver."""
        self.reserved += size
        self._peak_reserved = max(self._peak_reserved, self.reserved)
        self._log_segment(events.SEGMENT_ALLOC, address, size)

    def _count_returned(self, address: int, size: int) -> None:
        """Count and log memory returned to the driver."""
        self.reserved -= size
        self._log_segment(events.SEGMENT_FREE, address, size)

    def _log_segment(self, kind: int, address: int, size: int) -> None:
        if self.log is not None:
            self.log.append(kind, self.device, address, size, 0, self._stack)

    def _release_segment(self, block: Block) -> None:
        """Return a segment that is one free block (``release_block``)."""
        self._drop(block)
        self._count_returned(block.address, block.size)


def _entry(block: Block) -> tuple[list[int], int]:
    """Return the list in its pool that holds a block, and the block's entry there."""
    if block.state == UNMAPPED:
        return block.pool.unmapped, block.address
    return block.pool.keys, block.size << SHIFT | block.address


def _segment(device: str, head: Block) -> Segment:
    """Return the segment that begins with a block and ends before an unmapped one."""
    blocks = []
    block: Block | None = head
    while block is not None and block.state != UNMAPPED:
        is_free = block.state == FREE
        blocks.append(
            SegmentBlock(
                address=block.address,
                size=block.size,
                requested=block.requested,
                state="inactive" if is_free else "active_allocated",
                stack=-1 if is_free else block.stack,
            )
        )
        block = block.next
    return Segment(
        device=device,
        address=head.address,
        size=sum(each.size for each in blocks),
        kind="small" if head.pool.small else "large",
        expandable=head.base is not None,
        blocks=tuple(blocks),
        stack=head.segment_stack,
    )
