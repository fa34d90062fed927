"""TensorFlow's allocator of best fit with coalescing (BFC), without a device.

The rules are those of ``BFCAllocator`` in ``xla/tsl/framework/bfc_allocator.cc`` of TensorFlow
2.21. Its bins only make the search shorter: through all of them the smallest free chunk that fits
is found, and of equal ones that at the lowest address. Left out are the timestamps of
``timestamped_allocator``, and joining regions that lie side by side, which neither the CPU's nor
the GPU's allocator of TensorFlow does.
"""

from __future__ import annotations

from tensorlens.planning.allocators.simulated import Block, SimulatedAllocator, SimulatedOutOfMemory
from tensorlens.records.logs.events import EventLog
from tensorlens.units import rounded_up

_GRAIN = 256
"""Chunks are multiples of so many bytes."""
_FIRST_REGION = 2 << 20
"""Bytes of the first region; each further one is at least twice as large."""
_MOST_SPARE = 128 << 20
"""Bytes beyond the request from which on a chunk is split in any case."""


class BFCAllocator(SimulatedAllocator):
    """Hands out addresses as TensorFlow's BFC allocator does on one device.

    A segment is what TensorFlow calls a region, a block what it calls a chunk.

    Args:
        capacity: bytes that all regions together may have; None: no limit, for an estimate without
            a card.
        collects: free regions go back where a request finds no room otherwise, as a GPU's do
            unless ``TF_ENABLE_GPU_GARBAGE_COLLECTION=false``; the CPU's stay.
        log: where every event is written; None: nowhere.
        device: the device's name in the log, and in errors.
    """

    def __init__(
        self,
        capacity: int | None = None,
        *,
        collects: bool = False,
        log: EventLog | None = None,
        device: str = "cuda:0",
    ) -> None:
        super().__init__(capacity, log, device)
        self._pool = self._memory.large
        first = _FIRST_REGION if capacity is None else min(capacity, _FIRST_REGION)
        self._next_region = rounded_up(first, _GRAIN)
        """Bytes of the next region."""
        self._collects = collects

    def _obtain(self, nbytes: int) -> tuple[Block, int]:
        size = rounded_up(nbytes, _GRAIN)
        chunk = self._memory.take_free(self._pool, size) or self._extend(size)
        if chunk.size >= 2 * size or chunk.size - size >= _MOST_SPARE:
            self._memory.split(chunk, size)
        return chunk, size

    def _extend(self, size: int) -> Block:
        """Return the one chunk of a new region with room for so many bytes (``Extend``)."""
        memory, available = self._memory, None
        if memory.capacity is not None:
            available = (memory.capacity - memory.reserved) // _GRAIN * _GRAIN
            if size > available:
                available += self._release_regions(size, available)
        larger = False
        while size > self._next_region:
            self._next_region *= 2
            larger = True
        chunk = memory.take(
            self._pool,
            self._next_region if available is None else min(self._next_region, available),
        )
        if chunk is None:
            raise SimulatedOutOfMemory(self.device, size)
        if not larger:
            self._next_region *= 2
        return chunk

    def _release_regions(self, size: int, available: int) -> int:
        """Give free regions back and return their bytes (``DeallocateFreeRegions``)."""
        regions = [each for each in self._memory.free_blocks(self._pool) if not each.is_split]
        nbytes = sum(region.size for region in regions)
        if not self._collects or size > available + nbytes:
            raise SimulatedOutOfMemory(self.device, size)
        for region in regions:
            self._memory.release(region)
        return nbytes
