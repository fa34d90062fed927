"""TensorFlow's allocator of best fit with coalescing (BFC), without a device.

The rules are those of ``BFCAllocator`` in ``xla/tsl/framework/bfc_allocator.cc`` of TensorFlow
2.21. Its bins only speed up the search: it finds the smallest free chunk that fits, and among equal
ones the lowest. Left out are the timestamps of ``timestamped_allocator``, and the joining of
adjacent regions, which TensorFlow's allocators for the CPU and for GPUs do not do.
"""

from __future__ import annotations

from tensorlens.planning.allocators.simulated import Block, SimulatedAllocator, SimulatedOutOfMemory
from tensorlens.records.logs.events import EventLog
from tensorlens.units import rounded_up

_GRAIN = 256
"""Chunk sizes are multiples of this many bytes."""
_FIRST_REGION = 2 << 20
"""Bytes of the first region; each further one is at least twice as large."""
_MAX_REMAINDER = 128 << 20
"""A chunk is always split if this many bytes or more would be left over."""


class BFCAllocator(SimulatedAllocator):
    """TensorFlow's BFC allocator on one device.

    TensorFlow calls a segment a region, and a block a chunk.

    Args:
        capacity: most bytes of all regions together; None: no limit.
        collects: whether free regions are returned if a request has no room. They are on a GPU
            unless ``TF_ENABLE_GPU_GARBAGE_COLLECTION=false``, and are not on the CPU.
        log: where events are written, if anywhere.
        device: the device's name in the log and in errors.
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
        first = _FIRST_REGION if capacity is None else min(capacity, _FIRST_REGION)
        self._next_region = rounded_up(first, _GRAIN)
        """Bytes of the next region, unless a request needs more."""
        self._collects = collects

    def _obtain(self, nbytes: int) -> tuple[Block, int]:
        size = rounded_up(nbytes, _GRAIN)
        chunk = self._take_smallest(self.large, size) or self._extend(size)
        if chunk.size >= 2 * size or chunk.size - size >= _MAX_REMAINDER:
            self._split(chunk, size)
        return chunk, size

    def _extend(self, size: int) -> Block:
        """Return the one chunk of a new region with room for ``size`` bytes (``Extend``)."""
        available = None
        if self.capacity is not None:
            available = (self.capacity - self.reserved) // _GRAIN * _GRAIN
            if size > available:
                available += self._release_regions(size, available)
        has_grown = False
        while size > self._next_region:
            self._next_region *= 2
            has_grown = True
        chunk = self._take_segment(
            self.large,
            self._next_region if available is None else min(self._next_region, available),
        )
        if chunk is None:
            raise SimulatedOutOfMemory(self.device, size)
        if not has_grown:
            self._next_region *= 2
        return chunk

    def _release_regions(self, size: int, available: int) -> int:
        """Return free regions to the driver, and their bytes (``DeallocateFreeRegions``)."""
        regions = [each for each in self._free_blocks(self.large) if not each.is_split]
        nbytes = sum(region.size for region in regions)
        if not self._collects or size > available + nbytes:
            raise SimulatedOutOfMemory(self.device, size)
        for region in regions:
            self._release_segment(region)
        return nbytes
