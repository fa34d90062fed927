"""TensorFlow's allocator of best fit with coalescing (BFC), without a device.

The rules are those of ``BFCAllocator`` in ``xla/tsl/framework/bfc_allocator.cc`` of TensorFlow
2.21. Its bins only make the search shorter: through all of them the smallest free chunk that fits
is found, and of equal ones that at the lowest address. Left out are the timestamps of
``timestamped_allocator``, and joining regions that lie side by side, which neither the CPU's nor
the GPU's allocator of TensorFlow does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from struct import pack, unpack

from tensorlens.errors import UsageError
from tensorlens.planning.allocators.blocks import ALLOCATED, FREE, Block, Memory, Pool
from tensorlens.planning.allocators.journal import Journal
from tensorlens.planning.allocators.settings import Settings
from tensorlens.planning.allocators.simulated import (
    Figures,
    OutOfMemory,
    SimulatedAllocator,
    refuse,
)
from tensorlens.records.events import OOM, Context, EventLog

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BFCSettings:
    """What ``BFCAllocator::Options`` and its memory limit say.

    Raises:
        UsageError: there is no limit and something that is counted from it.
    """

    limit: int | None = None
    """Bytes that all regions together may have; None: no end, which TensorFlow never has and an
    estimate for an unknown card needs."""
    allow_growth: bool = True
    """Regions are taken as they are needed; else one of the whole limit at the first request."""
    garbage_collection: bool = False
    """Regions without a chunk in use go back before a request fails."""
    fragmentation_fraction: float = 0.0
    """A chunk may exceed its request by less than this share of the limit; 0: by less than 128
    MiB."""

    def __post_init__(self) -> None:
        if self.limit is None and (not self.allow_growth or self.fragmentation_fraction > 0):
            raise UsageError("a BFC allocator without a limit has to grow, in steps of its own")
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"a BFC allocator cannot have {self.limit} bytes")

    @property
    def max_spare(self) -> int:
        """Bytes beyond the request from which on a chunk is split in any case."""
        if self.limit is not None and self.fragmentation_fraction > 0:
            return int(self.fragmentation_fraction * self.limit)
        return 128 * _MIB


_GRAIN = 256
"""Chunks are multiples of so many bytes."""
_FIRST_REGION = 2 << 20


class BFCAllocator(SimulatedAllocator):
    """Hands out addresses as TensorFlow's BFC allocator does on one device.

    What it says and does follows from the requests alone: the same ones give the same addresses.
    A segment is what TensorFlow calls a region, a block what it calls a chunk.

    Args:
        settings: options and limit; by default growth without an end.
        capacity: bytes that the driver, or the system, has for this allocator; None: no end.
        log: where every event is written; None: nowhere.
        device: the device's name in the log, and in errors.
        place: told a region's bytes, returns the address where it is put; by default each follows
            the one before.
    """

    def __init__(
        self,
        settings: BFCSettings | None = None,
        *,
        capacity: int | None = None,
        log: EventLog | None = None,
        device: str = "cuda:0",
        place: Callable[[int], int] | None = None,
    ) -> None:
        self.settings = BFCSettings() if settings is None else settings
        super().__init__(log, device)
        note = None if log is None else self._note_segment
        self._memory = Memory(Settings(), capacity, None, place, note)
        self._chunks = self._memory.blocks
        self._pool = Pool(0, small=False)
        self._max_spare = self.settings.max_spare
        limit = self.settings.limit
        first = _FIRST_REGION if limit is None else limit
        self._region = _rounded(min(first, _FIRST_REGION) if self.settings.allow_growth else first)
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
            OutOfMemory: there is no room. TensorFlow waits ten seconds for other threads to give
                memory back before it says so.
            UsageError: a negative number of bytes.
        """
        if nbytes <= 0:
            refuse(nbytes)
            return 0
        memory = self._memory
        size = -(-nbytes // _GRAIN) * _GRAIN
        chunk = memory.find(self._pool, size)
        if chunk is None:
            chunk = self._new(size, time, stack, context)
        if chunk.size >= 2 * size or chunk.size - size >= self._max_spare:
            self._split(chunk, size)
        elif chunk.prev is not None or chunk.next is not None:
            memory.split_bytes -= chunk.size
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

    def record_stream(self, address: int, stream: int) -> None:
        """Do nothing: TensorFlow gives memory back when the kernels that use it are queued."""

    def synchronize(self, stream: int | None = None) -> None:
        """Do nothing: no chunk waits for a stream."""

    def empty_cache(self, *, time: int | None = None, stack: int = -1) -> None:
        """Do nothing: TensorFlow keeps its regions."""

    @property
    def figures(self) -> Figures:
        """What is counted, now and at its highest.

        ``allocated`` is ``current`` and ``peak`` of ``tf.config.experimental.get_memory_info``,
        ``reserved`` the allocator's ``pool_bytes``; ``retries`` is how often unused regions went
        back to make room.
        """
        found = super().figures
        return replace(found, active=found.allocated)

    def _split(self, chunk: Block, size: int) -> None:
        """Make a free chunk of what a chunk has beyond so many bytes (``SplitChunk``)."""
        memory = self._memory
        remainder = chunk.size - size
        if chunk.prev is not None or chunk.next is not None:
            memory.split_bytes -= size
        else:
            memory.split_more(remainder)
        rest = Block(self._pool, chunk.address + size, remainder, FREE)
        self._chunks[rest.address] = rest
        rest.follow(chunk, chunk.next)
        chunk.size = size
        memory.insert(rest)

    def _give_back(self, chunk: Block) -> None:
        """Make a chunk free and one with its free neighbours (``TryToCoalesce``)."""
        memory = self._memory
        chunk.state, chunk.requested = FREE, 0
        change = 0
        before, after = chunk.prev, chunk.next
        if after is not None and after.state == FREE:
            change -= after.size
            memory.remove(after)
            self._join(chunk, after)
        if before is not None and before.state == FREE:
            change -= before.size
            memory.remove(before)
            self._join(before, chunk)
            chunk = before
        memory.insert(chunk)
        if chunk.prev is not None or chunk.next is not None:
            change += chunk.size
        memory.split_more(change)

    def _join(self, chunk: Block, after: Block) -> None:
        """Make one chunk of two neighbours (``Merge``)."""
        chunk.size += after.size
        chunk.next = after.next
        if after.next is not None:
            after.next.prev = chunk
        del self._chunks[after.address]

    def _new(self, size: int, time: int | None, stack: int, context: Context | None) -> Block:
        """Return the one chunk of a new region; searches do not find it."""
        memory = self._memory
        self._time, memory.stack = time, stack
        chunk = self._extend(size)
        if chunk is None and self._release_regions(size):
            self._retries += 1
            chunk = self._extend(size)
        if chunk is not None:
            return chunk
        self._ooms += 1
        failure = OutOfMemory(
            device=self.device,
            nbytes=size,
            allocated=self._allocated,
            reserved=memory.reserved,
            capacity=memory.capacity,
            allowed=self.settings.limit,
            largest_free=self.fragmentation().largest_free,
        )
        log = self.log
        if log is not None:
            limits = (self.settings.limit, memory.capacity)
            free = min(limit for limit in limits if limit is not None) - memory.reserved
            log.append(OOM, self.device, free, size, self._when(log), stack, context)
        raise failure

    def _extend(self, size: int) -> Block | None:
        """Return a new region that has room for so many bytes (``Extend``)."""
        memory, limit = self._memory, self.settings.limit
        available = None
        if limit is not None:
            available = (limit - memory.reserved) // _GRAIN * _GRAIN
            if size > available:
                return None
        larger = False
        while size > self._region:
            self._region *= 2
            larger = True
        nbytes = self._region if available is None else min(self._region, available)
        chunk = memory.take(self._pool, nbytes)
        while chunk is None:
            less = _backpedalled(nbytes)
            # of a few KiB nine tenths are rounded up to the same again: TensorFlow never ends
            if less < size or less == nbytes:
                return None
            nbytes = less
            chunk = memory.take(self._pool, nbytes)
        if not larger:
            self._region *= 2
        return chunk

    def _release_regions(self, size: int) -> bool:
        """Give unused regions back where that can make room (``DeallocateFreeRegions``)."""
        if not self.settings.garbage_collection:
            return False
        memory, limit = self._memory, self.settings.limit
        unused = [chunk for chunk in memory.free_blocks(self._pool) if not chunk.split]
        released = sum(chunk.size for chunk in unused)
        if not unused or (limit is not None and size > limit - memory.reserved + released):
            return False
        for chunk in unused:
            memory.release(chunk)
        return True


def least_limit(
    journal: Journal, settings: BFCSettings | None = None, *, step: int = _FIRST_REGION
) -> int:
    """Return the fewest bytes as the limit with which every request has room.

    It is at least the peak of what is requested; found by halving, to ``step`` bytes.

    Args:
        journal: the requests.
        settings: the options; each limit that is tried takes the place of theirs.
        step: how finely to search.
    """
    settings = BFCSettings() if settings is None else settings
    needed = journal.replay(BFCAllocator(BFCSettings())).figures.requested.peak
    too_little = -(-needed // step) - 1
    enough = max(too_little + 1, 0)

    def fits(steps: int) -> bool:
        try:
            journal.replay(BFCAllocator(replace(settings, limit=steps * step)))
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


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _GRAIN) * _GRAIN


def _backpedalled(nbytes: int) -> int:
    """Return nine tenths of a region, with the rounding of the ``float`` that they are."""
    return _rounded(int(_single(_single(nbytes) * _single(0.9))))


def _single(value: float) -> float:
    nearest: float = unpack("f", pack("f", value))[0]
    return nearest
