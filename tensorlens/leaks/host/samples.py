"""Samples of the host's memory, taken while a loop runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tensorlens.frameworks.base import UNKNOWN
from tensorlens.frameworks.host.counters import HeapCounter
from tensorlens.frameworks.host.process_memory import child_processes, resident


@dataclass(frozen=True, slots=True)
class HostSample:
    """The host's memory after a step; :data:`UNKNOWN` for figures that are not available."""

    step: int
    """Number of steps that had ended."""
    heap: int
    """Bytes of the C heap in use, less those that torch's CPU allocator has handed out. If the C
    library does not count them, bytes of the resident set."""
    objects: int
    """Blocks of Python's own allocator."""
    pinned: int = UNKNOWN
    """Bytes of page-locked memory that a framework has handed out."""
    children: int = UNKNOWN
    """Number of child processes."""
    children_bytes: int = UNKNOWN
    """Bytes of their resident sets."""


class HostSampler:
    """Takes samples and keeps them.

    Args:
        pinned: returns the bytes of page-locked memory, or :data:`UNKNOWN`.
    """

    def __init__(self, pinned: Callable[[], int] | None = None) -> None:
        self.samples: list[HostSample] = []
        self._pinned = pinned
        self._heap, self._counts_tensors = _reader()

    def look(self, step: int, tensors: int) -> None:
        """Take a sample and keep it.

        Args:
            step: number of steps that have ended.
            tensors: bytes that the framework's allocator of host memory has handed out.
        """
        self.samples.append(self.now(step, tensors))

    def thin(self, stride: int) -> None:
        """Keep only the samples of each ``stride``-th step."""
        self.samples = [each for each in self.samples if each.step % stride == 0]

    def now(self, step: int, tensors: int) -> HostSample:
        """Take a sample that is not kept."""
        heap = self._heap()
        if heap != UNKNOWN and self._counts_tensors:
            heap -= max(tensors, 0)
        pinned = UNKNOWN if self._pinned is None else self._pinned()
        return HostSample(step, heap, sys.getallocatedblocks(), pinned, *child_processes())


@cache
def _reader() -> tuple[Callable[[], int], bool]:
    """Return the function that reads the heap, and whether torch's tensors are in it."""
    try:
        return HeapCounter().in_use, True
    except OSError:
        return resident, False
