"""Common parts of simulated allocators: their figures, and their segments.

How requests are rounded, where blocks are found and what goes back is each one's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.planning.allocators.blocks import ALLOCATED, FREE, UNMAPPED, Block, Memory
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


class OutOfMemory(TensorlensError):
    """A request that has no room in what the allocator may take."""

    exit_code = 3

    def __init__(self, device: str, nbytes: int) -> None:
        super().__init__(f"{device} has no room for {format_bytes(nbytes)}")


_STATES = {FREE: "inactive", ALLOCATED: "active_allocated"}


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


_STEP_NS = 1000
"""Between events without times."""


class SimulatedAllocator:
    """Counts what is handed out on one device, and writes events into a log.

    Args:
        log: where every event is written; None: nowhere.
        device: the device's name in the log, and in errors.
    """

    _memory: Memory
    """Set by each allocator before anything else is asked of it."""

    def __init__(self, log: EventLog | None, device: str) -> None:
        self.device = device
        self.log = log
        self._time: int | None = None
        self._allocated = self._peak_allocated = 0
        self._requested = self._peak_requested = 0

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
        return segments(self._memory, self.device)

    def write_segments(self) -> None:
        """Put the segments as they are now into the log, in place of those of the same device."""
        log = self.log
        if log is None:
            return
        log.device_number(self.device)
        others = [each for each in log.segments if each.device != self.device]
        log.segments = [*others, *self.segments()]
        log.segments_known = True

    def _handed_out(self, address: int) -> Block:
        block = self._memory.blocks.get(address)
        if block is None or block.state != ALLOCATED:
            raise UsageError(f"{self.device}: no block is handed out at address {address:#x}")
        return block

    def _note_block(
        self,
        log: EventLog,
        block: Block,
        size: int,
        time: int | None,
        stack: int,
        context: Context | None,
    ) -> None:
        when = len(log.kind) * _STEP_NS if time is None else time
        row = log.append(events.ALLOC, self.device, block.address, size, when, stack, context)
        block.row, block.stack = row, stack
        if block.size > size:
            log.held[row] = block.size

    def _note_free(
        self, log: EventLog, block: Block, time: int | None, stack: int, context: Context | None
    ) -> None:
        when = len(log.kind) * _STEP_NS if time is None else time
        log.append(
            events.FREE, self.device, block.address, log.size[block.row], when, stack, context
        )

    def _note_segment(self, kind: int, address: int, size: int, stack: int) -> None:
        log = self.log
        assert log is not None
        log.append(kind, self.device, address, size, self._when(log), stack)

    def _when(self, log: EventLog) -> int:
        return len(log.kind) * _STEP_NS if self._time is None else self._time


def refuse(nbytes: int) -> None:
    """Refuse a request for less than nothing.

    Raises:
        UsageError: it is one.
    """
    if nbytes < 0:
        raise UsageError(f"cannot allocate {nbytes} bytes")
