"""What simulated allocators have in common: what they count, and what they tell of their segments.

How requests are rounded, where blocks are found and what goes back is each one's own.
"""

from __future__ import annotations

from tensorlens.errors import UsageError
from tensorlens.planning.allocators.blocks import ALLOCATED, Block, Memory
from tensorlens.planning.allocators.figures import Figures, Level
from tensorlens.planning.allocators.state import fragmentation, segments
from tensorlens.recording.moments import Fragmentation
from tensorlens.records.events import ALLOC, FREE, Context, EventLog, Segment

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
        self._active = self._peak_active = 0
        self._retries = self._ooms = 0

    @property
    def figures(self) -> Figures:
        """What is counted, now and at its highest."""
        memory = self._memory
        return Figures(
            allocated=Level(self._allocated, self._peak_allocated),
            requested=Level(self._requested, self._peak_requested),
            active=Level(self._active, self._peak_active),
            reserved=Level(memory.reserved, memory.peak_reserved),
            inactive_split=Level(memory.split_bytes, memory.peak_split_bytes),
            segments=Level(memory.segments, memory.peak_segments),
            retries=self._retries,
            ooms=self._ooms,
        )

    def reset_peaks(self) -> None:
        """Let every peak be what is there now."""
        self._peak_allocated, self._peak_requested = self._allocated, self._requested
        self._peak_active = self._active
        self._memory.reset_peaks()

    def segments(self) -> tuple[Segment, ...]:
        """Return what is held from the driver, by address, with every block in it."""
        return segments(self._memory, self.device)

    def fragmentation(self) -> Fragmentation:
        """Return how well the segments are used; a block that a stream still uses is held."""
        return fragmentation(self._memory, self.device)

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
        row = log.append(ALLOC, self.device, block.address, size, when, stack, context)
        block.row, block.stack = row, stack
        if block.size > size:
            log.held[row] = block.size

    def _note_free(
        self, log: EventLog, block: Block, time: int | None, stack: int, context: Context | None
    ) -> None:
        when = len(log.kind) * _STEP_NS if time is None else time
        log.append(FREE, self.device, block.address, log.size[block.row], when, stack, context)

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
