"""TensorFlow's allocator of best fit with coalescing (BFC), without a device.

The rules are those of ``BFCAllocator`` in ``xla/tsl/framework/bfc_allocator.cc`` of TensorFlow
2.21. Its bins only make the search shorter: through all of them the smallest free chunk that fits
is found, and of equal ones that at the lowest address. Left out are the timestamps of
``timestamped_allocator``, and joining regions that lie side by side, which neither the CPU's nor
the GPU's allocator of TensorFlow does.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorlens.planning.allocators.blocks import ALLOCATED, FREE, Block, Memory, Pool
from tensorlens.planning.allocators.journal import Journal
from tensorlens.planning.allocators.settings import Settings
from tensorlens.planning.allocators.simulated import (
    OutOfMemory,
    SimulatedAllocator,
    refuse,
)
from tensorlens.records.events import Context, EventLog

_GRAIN = 256
"""Chunks are multiples of so many bytes."""
_FIRST_REGION = 2 << 20
_MOST_SPARE = 128 << 20
"""Bytes beyond the request from which on a chunk is split in any case."""


class BFCAllocator(SimulatedAllocator):
    """Hands out addresses as TensorFlow's BFC allocator does on one device.

    What it says and does follows from the requests alone: the same ones give the same addresses.
    A segment is what TensorFlow calls a region, a block what it calls a chunk.

    Args:
        limit: bytes that all regions together may have; None: no end, which TensorFlow never has
            and an estimate for an unknown card needs.
        log: where every event is written; None: nowhere.
        device: the device's name in the log, and in errors.
        place: told a region's bytes, returns the address where it is put; by default each follows
            the one before.
    """

    def __init__(
        self,
        limit: int | None = None,
        *,
        log: EventLog | None = None,
        device: str = "cuda:0",
        place: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(log, device)
        note = None if log is None else self._note_segment
        self._memory = Memory(Settings(), limit, None, place, note)
        self._chunks = self._memory.blocks
        self._pool = Pool(0, small=False)
        first = _FIRST_REGION if limit is None else min(limit, _FIRST_REGION)
        self._region = -(-first // _GRAIN) * _GRAIN
        """Bytes of the next region."""

    def malloc(
        self,
        nbytes: int,
        stream: int = 0,
        *,
        time: int | None = None,
        stack: int = -1,
        context: Context | None = None,
    ) -> int:
        """Hand out a chunk and return its address; 0 for a request of 0 bytes.

        Args:
            nbytes: bytes asked for.
            stream: of no meaning here: one pool serves all.
            time: nanoseconds since the recording began; None: a microsecond for each event.
            stack: number of the stack in the log.
            context: what else the log says of it.

        Raises:
            OutOfMemory: there is no room.
            UsageError: a negative number of bytes.
        """
        if nbytes <= 0:
            refuse(nbytes)
            return 0
        memory = self._memory
        size = -(-nbytes // _GRAIN) * _GRAIN
        chunk = memory.find(self._pool, size)
        if chunk is None:
            chunk = self._new(size, time, stack)
        if chunk.size >= 2 * size or chunk.size - size >= _MOST_SPARE:
            self._split(chunk, size)
        chunk.state, chunk.requested = ALLOCATED, nbytes
        self._allocated = allocated = self._allocated + chunk.size
        if allocated > self._peak_allocated:
            self._peak_allocated = allocated
        self._requested = requested = self._requested + nbytes
        if requested > self._peak_requested:
            self._peak_requested = requested
        if self.log is not None:
            self._note_block(self.log, chunk, size, time, stack, context)
        return chunk.address

    def free(
        self,
        address: int,
        *,
        time: int | None = None,
        stack: int = -1,
        context: Context | None = None,
    ) -> None:
        """Take a chunk back; the arguments are those of :meth:`malloc`, address 0 is no chunk.

        Raises:
            UsageError: no chunk at the address is handed out.
        """
        if not address:
            return
        chunk = self._handed_out(address)
        self._allocated -= chunk.size
        self._requested -= chunk.requested
        if self.log is not None:
            self._note_free(self.log, chunk, time, stack, context)
        self._give_back(chunk)

    def empty_cache(self, *, time: int | None = None, stack: int = -1) -> None:
        """Do nothing: TensorFlow keeps its regions."""

    def _split(self, chunk: Block, size: int) -> None:
        """Make a free chunk of what a chunk has beyond so many bytes (``SplitChunk``)."""
        memory = self._memory
        remainder = chunk.size - size
        rest = Block(self._pool, chunk.address + size, remainder, FREE)
        self._chunks[rest.address] = rest
        rest.follow(chunk, chunk.next)
        chunk.size = size
        memory.insert(rest)

    def _give_back(self, chunk: Block) -> None:
        """Make a chunk free and one with its free neighbours (``TryToCoalesce``)."""
        memory = self._memory
        chunk.state, chunk.requested = FREE, 0
        before, after = chunk.prev, chunk.next
        if after is not None and after.state == FREE:
            memory.remove(after)
            self._join(chunk, after)
        if before is not None and before.state == FREE:
            memory.remove(before)
            self._join(before, chunk)
            chunk = before
        memory.insert(chunk)

    def _join(self, chunk: Block, after: Block) -> None:
        """Make one chunk of two neighbours (``Merge``)."""
        chunk.size += after.size
        chunk.next = after.next
        if after.next is not None:
            after.next.prev = chunk
        del self._chunks[after.address]

    def _new(self, size: int, time: int | None, stack: int) -> Block:
        """Return the one chunk of a new region; searches do not find it."""
        self._time, self._memory.stack = time, stack
        chunk = self._extend(size)
        if chunk is None:
            raise OutOfMemory(self.device, size)
        return chunk

    def _extend(self, size: int) -> Block | None:
        """Return a new region that has room for so many bytes (``Extend``)."""
        memory = self._memory
        available = None
        if memory.capacity is not None:
            available = (memory.capacity - memory.reserved) // _GRAIN * _GRAIN
            if size > available:
                return None
        larger = False
        while size > self._region:
            self._region *= 2
            larger = True
        nbytes = self._region if available is None else min(self._region, available)
        chunk = memory.take(self._pool, nbytes)
        if not larger:
            self._region *= 2
        return chunk


def least_limit(journal: Journal, *, step: int = _FIRST_REGION) -> int:
    """Return the fewest bytes as the limit with which every request has room.

    It is at least the peak of what is requested; found by halving, to ``step`` bytes.

    Args:
        journal: the requests.
        step: how finely to search.
    """
    needed = journal.replay(BFCAllocator()).figures.requested.peak
    too_little = -(-needed // step) - 1
    enough = max(too_little + 1, 0)

    def fits(steps: int) -> bool:
        try:
            journal.replay(BFCAllocator(steps * step))
        except OutOfMemory:
            return False
        return True

    while not fits(enough):
        too_little, enough = enough, max(2 * enough, 1)
    while enough - too_little > 1:
        middle = (too_little + enough) // 2
        if fits(middle):
            enough = middle
        else:
            too_little = middle
    return enough * step
