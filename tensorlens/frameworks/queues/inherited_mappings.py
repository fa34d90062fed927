"""Which mappings of a forked process are of before the fork.

The kernel does not tell. A mapping that still shares an anonymous page is one, for the kernel never
joins a new mapping to one that came by a fork (``is_mergeable_anon_vma`` of ``mm/vma.c``). One
that shares none is one if this process, its parent, has a mapping with the same addresses, or if
pages at these addresses are alike in both: a copy that was made for a reference count has all
other words in common. New mappings get the same addresses in both, and differ.
"""

from __future__ import annotations

import bisect
import mmap
import os
from array import array
from collections.abc import Iterator, Sequence
from operator import eq
from typing import Any

from tensorlens.frameworks.host.process import mappings

_PAGES = 16
"""Pages of a mapping that are compared."""


class InheritedMappings:
    """Compares mappings of forked processes with those of this process."""

    def __init__(self) -> None:
        self._ranges = sorted(_range(line.partition(" ")[0]) for line in mappings())
        self._starts = [start for start, _ in self._ranges]

    def among(self, mappings: Sequence[Any], pid: int) -> Iterator[Any]:
        """Yield those of a process's mappings, as psutil gives them, that are of before."""
        for each in mappings:
            if "s" not in each.perms and each.private_dirty and self._is_inherited(each, pid):
                yield each

    def _is_inherited(self, mapping: Any, pid: int) -> bool:
        # a file's pages are shared with whoever has mapped it
        is_anonymous = mapping.path.startswith("[")
        if is_anonymous and mapping.shared_clean + mapping.shared_dirty:
            return True
        start, end = _range(mapping.addr)
        place = bisect.bisect_right(self._starts, start) - 1
        if place < 0 or self._ranges[place][1] < end:
            return False
        return self._ranges[place] == (start, end) or _is_alike(pid, start, end)


def _range(text: str) -> tuple[int, int]:
    start, _, end = text.partition("-")
    return int(start, 16), int(end, 16)


def _is_alike(pid: int, start: int, end: int) -> bool:
    """Tell whether most pages of a range that are not empty are alike here and there."""
    count = (end - start) // mmap.PAGESIZE
    alike = different = 0
    for page in range(0, count, max(1, count // _PAGES)):
        place = start + page * mmap.PAGESIZE
        own, other = _words("self", place), _words(pid, place)
        if any(own) and any(other):
            is_alike = 2 * sum(map(eq, own, other)) >= len(own)
            alike, different = alike + is_alike, different + (not is_alike)
    return alike > different


def _words(process: int | str, place: int) -> array[int]:
    """Return the words of a page of a process; none where it cannot be read."""
    words = array("Q")
    try:
        memory = os.open(f"/proc/{process}/mem", os.O_RDONLY)
        try:
            words.frombytes(os.pread(memory, mmap.PAGESIZE, place))
        finally:
            os.close(memory)
    except (OSError, ValueError, OverflowError):
        return array("Q")
    return words
