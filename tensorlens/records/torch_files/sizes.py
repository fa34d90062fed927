"""Sizes of blocks in torch's caching allocator: rounding, splitting, and remainders.

From ``c10/cuda/CUDACachingAllocator.cpp`` (``round_size``, ``should_split``) and
``c10/core/AllocatorConfig.h`` of torch 2.13.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorlens.records.logs.events import Segment
from tensorlens.units import rounded_up

MIN_BLOCK = 512
"""Sizes of blocks are multiples of this (``kMinBlockSize``)."""
SMALL = 1 << 20
"""Largest request that the small pool serves (``kSmallSize``)."""
SMALL_SEGMENT = 2 << 20
"""Bytes of a segment of the small pool (``kSmallBuffer``)."""
LARGE_SEGMENT = 20 << 20
"""Bytes of a segment for requests above 1 MiB and below 10 MiB (``kLargeBuffer``); a block too
large to split serves requests that are smaller by less than this."""
_MIN_LARGE_REQUEST = 10 << 20
"""Least request with a segment of its own size (``kMinLargeAlloc``)."""

_POWERS = 16
"""Numbers in ``roundup_power2_divisions``."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of ``PYTORCH_CUDA_ALLOC_CONF`` that change sizes."""

    expandable_segments: bool = False
    max_split_size: int | None = None
    """Least size of blocks that are never split, nor used for smaller requests."""
    roundup_power2_divisions: Sequence[int] = ()
    """Numbers of parts between powers of two to which requests are rounded up, for requests below
    2 MiB, below 4 MiB and so on; the last of the sixteen is for 32 GiB and more. Empty for none."""

    @classmethod
    def of(cls, settings: Any) -> Rules:
        """Return the rules in a snapshot's ``allocator_settings``; without them the usual ones.

        Settings of another form than torch's are ignored.
        """
        if not isinstance(settings, Mapping):
            return cls()
        table = settings.get("roundup_power2_divisions")
        known = table if isinstance(table, Mapping) else {}
        parts = [known.get(str(1 << power)) for power in range(_POWERS)]
        divisions = tuple(part if type(part) is int and part > 0 else 0 for part in parts)
        limit = settings.get("max_split_size")
        return cls(
            expandable_segments=settings.get("expandable_segments") is True,
            max_split_size=limit if type(limit) is int and limit > 0 else None,
            roundup_power2_divisions=divisions if any(divisions) else (),
        )

    def rounded(self, size: int) -> int:
        """Return the bytes of the smallest block for a request."""
        if size < MIN_BLOCK:
            return MIN_BLOCK
        if self.roundup_power2_divisions:
            power = min(max(size.bit_length() - 21, 0), len(self.roundup_power2_divisions) - 1)
            divisions = self.roundup_power2_divisions[power]
            if divisions > 1 and size > MIN_BLOCK * divisions:
                return _divided(size, divisions)
        return rounded_up(size, MIN_BLOCK)

    def splits(self, size: int, remainder: int, *, small: bool) -> bool:
        """Return whether the remainder of a free block is split off for other requests."""
        if small or self.expandable_segments:
            return remainder >= MIN_BLOCK
        return (self.max_split_size is None or size < self.max_split_size) and remainder > SMALL


def segment_size(size: int) -> int:
    """Return the bytes of a new segment for a rounded request (``get_allocation_size``)."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < _MIN_LARGE_REQUEST else rounded_up(size, SMALL_SEGMENT)


def _divided(size: int, divisions: int) -> int:
    floor = 1 << (size.bit_length() - 1)
    if size == floor:
        return size
    step = floor >> (divisions.bit_length() - 1)
    if step == 0:
        return floor << 1
    return rounded_up(size, step)


class LargePool:
    """The fixed segments of a device's large pool and the blocks in them, at one moment.

    In this pool, the allocator splits a block off the free memory at its address, unless the
    remainder is too small to be of use: then the block gets all of it. A trace does not have these
    sizes, but it has all addresses, and so the size of the free memory at an address. Elsewhere a
    block has the rounded size of its request.
    """

    def __init__(self, segments: Iterable[Segment], rules: Rules) -> None:
        self._rules = rules
        self._ends: dict[int, int] = {}
        self._starts: list[int] = []
        self._blocks: list[int] = []
        for segment in segments:
            if segment.kind != "small" and not segment.expandable:
                self._add(segment.address, segment.size)

    def add(self, address: int, size: int) -> None:
        """Add a segment taken from the driver."""
        if size > SMALL_SEGMENT:
            self._add(address, size)

    def _add(self, address: int, size: int) -> None:
        if not self._rules.expandable_segments:
            if address not in self._ends:
                insort(self._starts, address)
            self._ends[address] = address + size

    def remove(self, address: int) -> None:
        """Remove a segment returned to the driver."""
        if self._ends.pop(address, None) is not None:
            del self._starts[bisect_left(self._starts, address)]

    def start(self, known: Iterable[int]) -> None:
        """Set the addresses of the blocks from before the trace."""
        self._blocks = sorted(each for each in {*known} if self._room(each) is not None)

    def size_before(self, address: int, size: int) -> int | None:
        """Return the full size of a block from before the trace; None if it cannot be known.

        Every block of this pool, free or not, is larger than 1 MiB, so a smaller gap after a block
        in use is a part of it. Whether a larger gap is, is unknown.
        """
        room = self._room(address) or size
        return None if room - size > SMALL else max(room, size)

    def allocate(self, address: int, size: int) -> int:
        """Add a block for a rounded request, and return its full size."""
        room = self._room(address)
        if room is None:
            return size
        insort(self._blocks, address)
        remainder = room - size
        split = remainder < 0 or self._rules.splits(size, remainder, small=False)
        return size if split else room

    def free(self, address: int) -> None:
        """Remove a block."""
        index = bisect_left(self._blocks, address)
        if self._blocks[index : index + 1] == [address]:
            del self._blocks[index]

    def _room(self, address: int) -> int | None:
        """Return the bytes from an address to the next block; None outside of the segments."""
        segment = bisect_right(self._starts, address) - 1
        end = self._ends[self._starts[segment]] if segment >= 0 else address
        if end <= address:
            return None
        block = bisect_right(self._blocks, address)
        following = self._blocks[block] if block < len(self._blocks) else end
        return min(following, end) - address
