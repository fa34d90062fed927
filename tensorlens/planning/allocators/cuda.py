"""The caching allocator of torch for CUDA, without a device.

The rules are those of ``DeviceCachingAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp`` of torch
2.13. Private pools (CUDA graphs, ``torch.cuda.MemPool``) are left out, and blocks that wait for
another stream (``Tensor.record_stream``).
"""

from __future__ import annotations

from collections.abc import Callable

from tensorlens.planning.allocators.blocks import (
    ALLOCATED,
    FREE,
    Block,
    Memory,
    Pool,
)
from tensorlens.planning.allocators.expandable import (
    grow,
    release_cached,
    release_oversize,
)
from tensorlens.planning.allocators.settings import Settings
from tensorlens.planning.allocators.simulated import OutOfMemory, SimulatedAllocator, refuse
from tensorlens.records.events import Context, EventLog
from tensorlens.records.torch_snapshots.sizes import MIN_BLOCK, SMALL


class CachingAllocator(SimulatedAllocator):
    """Hands out addresses as torch's caching allocator does on one device.

    What it says and does follows from the requests alone: the same ones give the same addresses.

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
        self.settings = Settings() if settings is None else settings
        super().__init__(log, device)
        note = None if log is None else self._note_segment
        total = capacity if total is None else total
        self._memory = Memory(self.settings, capacity, total, place, note)
        self._blocks = self._memory.blocks
        rules = self.settings.rules
        self._rounded = rules.rounded if rules.divisions else None
        self._expandable = self.settings.expandable_segments
        self._max_split = self.settings.max_split_size

    def malloc(
        self,
        nbytes: int,
        stream: int = 0,
        *,
        time: int | None = None,
        stack: int = -1,
        context: Context | None = None,
    ) -> int:
        """Hand out a block and return its address; 0 for a request of 0 bytes.

        Args:
            nbytes: bytes asked for.
            stream: number of the stream that the block is for; 0 is the default one.
            time: nanoseconds since the recording began; None: a microsecond for each event.
            stack: number of the stack in the log.
            context: what else the log says of it.

        Raises:
            OutOfMemory: there is no room, even after all that is cached went back to the driver.
            UsageError: a negative number of bytes.
        """
        if nbytes <= 0:
            refuse(nbytes)
            return 0
        memory = self._memory
        if self._rounded is None:
            size = -(-nbytes // MIN_BLOCK) * MIN_BLOCK
        else:
            size = self._rounded(nbytes)
        small = size <= SMALL
        pool = (memory.small if small else memory.large).get(stream)
        if pool is None:
            pool = memory.pool(stream, small)
        block = memory.find(pool, size)
        if block is None:
            block = self._new(pool, size, time, stack)
        rest = block.size - size
        if small or self._expandable:
            splits = rest >= MIN_BLOCK
        else:
            splits = rest > SMALL and (self._max_split is None or size < self._max_split)
        if splits:
            self._split(block, size)
        given = block.size
        block.state, block.requested = ALLOCATED, nbytes
        self._allocated = allocated = self._allocated + given
        if allocated > self._peak_allocated:
            self._peak_allocated = allocated
        self._requested = requested = self._requested + nbytes
        if requested > self._peak_requested:
            self._peak_requested = requested
        if self.log is not None:
            self._note_block(self.log, block, size, time, stack, context)
        return block.address

    def free(
        self,
        address: int,
        *,
        time: int | None = None,
        stack: int = -1,
        context: Context | None = None,
    ) -> None:
        """Take a block back; the arguments are those of :meth:`malloc`, address 0 is no block.

        Raises:
            UsageError: no block at the address is handed out.
        """
        if not address:
            return
        block = self._handed_out(address)
        self._allocated -= block.size
        if self.log is not None:
            self._note_free(self.log, block, time, stack, context)
        self._give_back(block)

    def empty_cache(self, *, time: int | None = None, stack: int = -1) -> None:
        """Give all segments that are not in use back to the driver."""
        self._time, self._memory.stack = time, stack
        release_cached(self._memory)

    def _split(self, block: Block, size: int) -> None:
        """Make a free block of what a block has beyond so many bytes."""
        memory = self._memory
        address, remainder = block.address + size, block.size - size
        rest = Block(block.pool, address, remainder, FREE)
        self._blocks[address] = rest
        if block.reservation is not None:
            rest.reservation = block.reservation
        rest.prev, rest.next = block, block.next
        if block.next is not None:
            block.next.prev = rest
        block.next, block.size = rest, size
        memory.insert(rest)

    def _give_back(self, block: Block) -> None:
        """Make a block free and one with its free neighbours (``free_block``)."""
        memory = self._memory
        self._requested -= block.requested
        block.state, block.requested = FREE, 0
        before, after = block.prev, block.next
        if before is not None and before.state == FREE:
            memory.remove(before)
            before.size += block.size
            before.next = after
            if after is not None:
                after.prev = before
            del self._blocks[block.address]
            block = before
        if after is not None and after.state == FREE:
            memory.remove(after)
            block.size += after.size
            block.next = after.next
            if after.next is not None:
                after.next.prev = block
            del self._blocks[after.address]
        memory.insert(block)

    def _new(self, pool: Pool, size: int, time: int | None, stack: int) -> Block:
        """Return a free block that is in no pool, from the driver."""
        memory = self._memory
        self._time, memory.stack = time, stack
        block = self._take(pool, size)
        if block is None and release_oversize(memory, pool, size):
            block = self._take(pool, size)
        if block is None:
            release_cached(memory)
            block = self._take(pool, size)
        if block is None:
            raise OutOfMemory(self.device, size)
        return block

    def _take(self, pool: Pool, size: int) -> Block | None:
        memory = self._memory
        total = self.settings.segment_size(size)
        return grow(memory, pool, size) if self._expandable else memory.take(pool, total)
