"""The caching allocator of torch for CUDA, without a device.

The rules are those of ``DeviceCachingAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp`` of torch
2.13. Private pools (CUDA graphs, ``torch.cuda.MemPool``) are left out, and blocks that wait for
another stream (``Tensor.record_stream``).
"""

from __future__ import annotations

from collections.abc import Callable

from tensorlens.planning.allocators.blocks import Block, Pool
from tensorlens.planning.allocators.expandable import grow, release_cached, release_oversize
from tensorlens.planning.allocators.settings import Settings
from tensorlens.planning.allocators.simulated import OutOfMemory, SimulatedAllocator
from tensorlens.records.events import EventLog
from tensorlens.records.torch_snapshots.sizes import SMALL


class CachingAllocator(SimulatedAllocator):
    """Hands out addresses as torch's caching allocator does on one device.

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
        settings = Settings() if settings is None else settings
        total = capacity if total is None else total
        super().__init__(settings, capacity, total, log, device, place)
        self._rules = settings.rules
        self._expandable = settings.expandable_segments

    def empty_cache(self, *, stack: int = -1) -> None:
        """Give all segments that are not in use back to the driver."""
        self._memory.stack = stack
        release_cached(self._memory)

    def _obtain(self, nbytes: int, stream: int) -> tuple[Block, int]:
        memory, rules = self._memory, self._rules
        size = rules.rounded(nbytes)
        small = size <= SMALL
        pool = memory.pool(stream, small)
        block = memory.find(pool, size) or self._new(pool, size)
        if rules.splits(size, block.size - size, small=small, expandable=False):
            memory.split(block, size)
        return block, size

    def _new(self, pool: Pool, size: int) -> Block:
        """Return a free block that is in no pool, from the driver."""
        memory = self._memory
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
        if self._expandable:
            return grow(self._memory, pool, size)
        return self._memory.take(pool, self.settings.segment_size(size))
