"""Common parts of simulated allocators: requests and frees, their figures, and their segments.

Where a block comes from and what goes back to the driver is each one's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.planning.allocators.blocks import ALLOCATED, FREE, UNMAPPED, Block, Memory
from tensorlens.planning.allocators.settings import Settings
from tensorlens.records import events
from tensorlens.records.events import Context, EventLog, Segment, SegmentBlock
from tensorlens.units import format_bytes


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


class NoRoom(TensorlensError):
    """A request that has no room in what the allocator may take."""

    exit_code = 3

    def __init__(self, device: str, nbytes: int) -> None:
        super().__init__(f"{device} has no room for {format_bytes(nbytes)}")


_STATES = {FREE: "inactive", ALLOCATED: "active_allocated"}


class SimulatedAllocator:
    """Counts what is handed out on one device, and writes events into a log.

    What it says and does follows from the requests alone: the same ones give the same addresses.
    """

    def __init__(
        self,
        settings: Settings,
        capacity: int | None,
        total: int | None,
        log: EventLog | None,
        device: str,
    ) -> None:
        self.settings = settings
        self.device = device
        self.log = log
        self._memory = Memory(settings, capacity, total, log, device)
        self._allocated = self._peak_allocated = 0
        self._requested = self._peak_requested = 0

    def malloc(self, nbytes: int, *, stack: int = -1, context: Context | None = None) -> int:
        """Hand out a block and return its address; 0 for a request of 0 bytes.

        Args:
            nbytes: bytes asked for.
            stack: number of the stack in the log.
            context: what else the log says of it.

        Raises:
            NoRoom: there is no room, also after the allocator gave back what it may.
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
        return tuple(_segment(self.device, blocks) for blocks in _stretches(self._memory))

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
