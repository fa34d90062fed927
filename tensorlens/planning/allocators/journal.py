"""The requests of a run, kept to be made again under other settings or in less memory."""

from __future__ import annotations

from array import array
from typing import Protocol, TypeVar

from tensorlens.planning.allocators.cuda import CachingAllocator
from tensorlens.planning.allocators.settings import Settings
from tensorlens.planning.allocators.simulated import OutOfMemory

_MALLOC, _FREE, _EMPTY = range(3)
_GRAIN = 2 << 20
"""Segments are multiples of so many bytes."""


class Allocator(Protocol):
    """An allocator that requests are made of: torch's or TensorFlow's."""

    def malloc(self, nbytes: int, stream: int = 0, /) -> int:
        """Hand out a block and return its address; 0 for a request of 0 bytes."""

    def free(self, address: int, /) -> None:
        """Take a block back; address 0 stands for no block."""

    def empty_cache(self) -> None:
        """Give what is not in use back to the driver."""


AnyAllocator = TypeVar("AnyAllocator", bound=Allocator)


class Journal:
    """Requests in the order in which they were made; a block is known by its request's number."""

    def __init__(self) -> None:
        self._kinds = array("b")
        self._values = array("q")
        self._streams = array("q")
        self._requests = 0

    def __len__(self) -> int:
        return len(self._kinds)

    def malloc(self, nbytes: int, stream: int = 0) -> int:
        """Note a request for so many bytes and return its number."""
        self._add(_MALLOC, nbytes, stream)
        self._requests += 1
        return self._requests - 1

    def free(self, request: int) -> None:
        """Note that a request's block was given back."""
        self._add(_FREE, request, 0)

    def empty_cache(self) -> None:
        """Note that cached memory was given back."""
        self._add(_EMPTY, 0, 0)

    def replay(self, allocator: AnyAllocator) -> AnyAllocator:
        """Make all requests of an allocator and return it.

        Raises:
            OutOfMemory: one has no room.
        """
        addresses: list[int] = []
        malloc, free, got = allocator.malloc, allocator.free, addresses.append
        for kind, value, stream in zip(self._kinds, self._values, self._streams, strict=True):
            if kind == _MALLOC:
                got(malloc(value, stream))
            elif kind == _FREE:
                free(addresses[value])
            else:
                allocator.empty_cache()
        return allocator

    def least_capacity(self, settings: Settings | None = None, *, step: int = _GRAIN) -> int:
        """Return the fewest bytes from the driver with which every request has room.

        It lies between the peak of what is allocated and the peak of what is reserved where there
        is no end of memory: cached segments go back when there is no room. Found by halving, to
        ``step`` bytes.

        Args:
            settings: what ``PYTORCH_CUDA_ALLOC_CONF`` would set.
            step: how finely to search.
        """
        free_run = self.replay(CachingAllocator(settings)).figures
        too_little = free_run.allocated.peak // step - 1
        enough = -(-free_run.reserved.peak // step)
        while enough - too_little > 1:
            middle = (too_little + enough) // 2
            if self._fits(settings, middle * step):
                enough = middle
            else:
                too_little = middle
        return enough * step

    def _fits(self, settings: Settings | None, capacity: int) -> bool:
        try:
            self.replay(CachingAllocator(settings, capacity=capacity))
        except OutOfMemory:
            return False
        return True

    def _add(self, kind: int, value: int, stream: int) -> None:
        self._kinds.append(kind)
        self._values.append(value)
        self._streams.append(stream)
