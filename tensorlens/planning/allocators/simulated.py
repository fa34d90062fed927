"""A simulated allocator: blocks, pools of free ones, memory from the driver, and figures.

Where a block comes from and what goes back to the driver is each one's own. The rules are those of
``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.13. Sizes are bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.records.logs import events
from tensorlens.records.logs.events import Context, EventLog, Segment, SegmentBlock
from tensorlens.records.torch_files.sizes import SMALL_SEGMENT
from tensorlens.units import format_bytes, rounded_up

FREE, ALLOCATED, UNMAPPED = range(3)
"""A block can be handed out; is handed out; is address space of an expandable segment that has no
memory behind it."""

SHIFT = 64
ADDRESSES = (1 << SHIFT) - 1
FIRST_ADDRESS = 1 << 44
"""Where a simulated device's memory begins."""


@dataclass(frozen=True, slots=True)
class Level:
    """A figure now, and at its highest since the beginning or the last reset."""

    current: int
    peak: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of an allocator, in bytes."""

    allocated: Level
    """Of blocks handed out, remainders included: torch's ``allocated_bytes.all``, TensorFlow's
    ``get_memory_info``."""
    requested: Level
    """Asked for, of the same blocks: ``requested_bytes.all``."""
    reserved: Level
    """Held from the driver: ``reserved_bytes.all``, ``pool_bytes``."""


class SimulatedOutOfMemory(TensorlensError):
    """A request that has no room in what the allocator may take."""

    exit_code = 3

    def __init__(self, device: str, nbytes: int) -> None:
        super().__init__(f"{device} has no room for {format_bytes(nbytes)}")


@dataclass(slots=True, eq=False)
class Pool:
    """Free blocks, for small requests or for large ones."""

    small: bool
    keys: list[int] = field(default_factory=list)
    """Size and address of each free block in one number, in ascending order."""
    unmapped: list[int] = field(default_factory=list)
    """Addresses of unmapped blocks, in ascending order."""


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
    base: int | None = None
    """Of an expandable segment, where its address space begins, into which memory is mapped."""
    row: int = -1
    stack: int = -1
    segment_stack: int = -1

    @property
    def is_split(self) -> bool:
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

    def __init__(self, capacity: int | None, log: EventLog | None, device: str) -> None:
        self.capacity = capacity
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
        rest.base = block.base
        rest.follow(block, block.next)
        block.size = size
        self.insert(rest)

    def merge(self, block: Block, state: int) -> None:
        """Free or unmap a block: join it with neighbours in the same state.

        The result goes into its pool (``free_block``, ``try_merge_blocks``).
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

    def take_free(self, pool: Pool, size: int) -> Block | None:
        """Take the smallest free block that fits out of its pool."""
        index = bisect_left(pool.keys, size << SHIFT)
        if index == len(pool.keys):
            return None
        return self.blocks[pool.keys.pop(index) & ADDRESSES]

    def reserve_addresses(self, size: int) -> int:
        """Return an address that a segment of so many bytes has from now on."""
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
        address = self.reserve_addresses(size)
        block = self.blocks[address] = Block(pool, address, size, FREE)
        block.segment_stack = self.stack
        self.count_reserved(address, size)
        return block

    def count_reserved(self, address: int, size: int) -> None:
        """Count memory from the driver, and note it."""
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self._note(events.SEGMENT_ALLOC, address, size)

    def count_returned(self, address: int, size: int) -> None:
        """Count memory that went back to the driver, and note it."""
        self.reserved -= size
        self._note(events.SEGMENT_FREE, address, size)

    def _note(self, kind: int, address: int, size: int) -> None:
        if self._log is not None:
            self._log.append(kind, self._device, address, size, 0, self.stack)

    def release(self, block: Block) -> None:
        """Give a segment back that is one free block (``release_block``)."""
        self.drop(block)
        self.count_returned(block.address, block.size)


def _entry(block: Block) -> tuple[list[int], int]:
    """Return the list of its pool that a block is in, and what stands there for it."""
    if block.state == UNMAPPED:
        return block.pool.unmapped, block.address
    return block.pool.keys, block.size << SHIFT | block.address


class SimulatedAllocator:
    """Counts what is handed out on one device, and writes events into a log.

    What it says and does follows from the requests alone: the same ones give the same addresses.
    """

    def __init__(self, capacity: int | None, log: EventLog | None, device: str) -> None:
        self.device = device
        self.log = log
        self._memory = Memory(capacity, log, device)
        self._allocated = self._peak_allocated = 0
        self._requested = self._peak_requested = 0

    def malloc(self, nbytes: int, *, stack: int = -1, context: Context | None = None) -> int:
        """Hand out a block and return its address; 0 for a request of 0 bytes.

        Args:
            nbytes: bytes asked for.
            stack: number of the stack in the log.
            context: what else the log says of it.

        Raises:
            SimulatedOutOfMemory: there is no room, also after the allocator gave back what it may.
            UsageError: a negative number of bytes.
        """
        if nbytes <= 0:
            if nbytes < 0:
                raise UsageError(f"cannot allocate {nbytes} bytes")
            return 0
        self._memory.stack = stack
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
        """Take a block back; the arguments are those of :meth:`malloc`, address 0 is no block."""
        if not address:
            return
        block = self._memory.blocks.get(address)
        if block is None or block.state != ALLOCATED:
            raise UsageError(f"{self.device}: no block is handed out at address {address:#x}")
        self._allocated -= block.size
        self._requested -= block.requested
        log = self.log
        if log is not None:
            log.append(events.FREE, self.device, address, log.size[block.row], 0, stack, context)
        self._memory.merge(block, FREE)

    def empty_cache(self) -> None:
        """Give what is not in use back to the driver; TensorFlow keeps its regions."""

    def _obtain(self, nbytes: int) -> tuple[Block, int]:
        """Return a block that is in no pool, split, and the rounded bytes of the request."""
        raise NotImplementedError

    @property
    def figures(self) -> Figures:
        """Figures now and at their highest."""
        memory = self._memory
        return Figures(
            allocated=Level(self._allocated, self._peak_allocated),
            requested=Level(self._requested, self._peak_requested),
            reserved=Level(memory.reserved, memory.peak_reserved),
        )

    def reset_peaks(self) -> None:
        """Let every peak be what is there now."""
        self._peak_allocated, self._peak_requested = self._allocated, self._requested
        self._memory.peak_reserved = self._memory.reserved

    def segments(self) -> tuple[Segment, ...]:
        """Return what is held from the driver, by address, with every block in it."""
        return tuple(_segment(self.device, blocks) for blocks in _mapped_runs(self._memory))

    def write_segments(self) -> None:
        """Put the segments as they are now into the log, in place of those of the same device."""
        log = self.log
        if log is None:
            return
        log.device_number(self.device)
        others = [each for each in log.segments if each.device != self.device]
        log.segments = [*others, *self.segments()]
        log.segments_known = True


def _segment(device: str, blocks: list[Block]) -> Segment:
    first = blocks[0]
    return Segment(
        device=device,
        address=first.address,
        size=sum(block.size for block in blocks),
        kind="small" if first.pool.small else "large",
        expandable=first.base is not None,
        blocks=tuple(
            SegmentBlock(
                address=block.address,
                size=block.size,
                requested=block.requested,
                state="inactive" if block.state == FREE else "active_allocated",
                stack=-1 if block.state == FREE else block.stack,
            )
            for block in blocks
        ),
        stack=first.segment_stack,
    )


def _mapped_runs(memory: Memory) -> Iterator[list[Block]]:
    """Give the blocks of each segment, or of each mapped run of an expandable one."""
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
