"""Extents of a device's blocks in its segments, and the memory each was given.

The allocator splits a block off the free memory at its address unless the remainder is too small
to be of use; then the block is given all of it, which its trace does not tell. The trace tells
every address, though, and so how far the free memory reached.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from tensorlens.records.events import Segment
from tensorlens.records.torch_snapshots.sizes import SMALL, SMALL_SEGMENT, Rules


class _Area:
    __slots__ = ("end", "expandable", "small")

    def __init__(self, end: int, small: bool, expandable: bool) -> None:
        self.end, self.small, self.expandable = end, small, expandable


class Extents:
    """The segments of a device and the blocks in them, as of one moment."""

    def __init__(self, segments: Iterable[Segment], rules: Rules) -> None:
        self._rules = rules
        self._areas: dict[int, _Area] = {}
        self._places: list[int] = []
        self._blocks: list[int] = []
        self._ends: dict[int, int] = {}
        self._open: set[int] = set()
        """Blocks of which only the least is known that they were given."""
        self.contradictions = 0
        """Events that cannot have happened in these segments."""
        for segment in segments:
            small = segment.kind == "small"
            self._put(segment.address, segment.size, small, segment.expandable)

    def add(self, address: int, size: int, *, mapped: bool) -> None:
        """Take a segment from the driver, or map a part of an expandable one."""
        small = size <= SMALL_SEGMENT
        if mapped:
            before = self._area(address - 1)
            if before is not None:
                area = self._areas[before]
                if area.expandable and area.end == address:
                    self._take(before)
                    address, size, small = before, size + address - before, area.small
            after = self._areas.get(address + size)
            if after is not None and after.expandable:
                self._take(address + size)
                size = after.end - address
        if size:
            self._put(address, size, small, mapped)

    def remove(self, address: int, size: int, *, mapped: bool) -> None:
        """Give a segment back to the driver, or unmap a part of an expandable one."""
        place = self._area(address)
        area = None if place is None else self._areas[place]
        if place is None or area is None or address + size > area.end:
            self.contradictions += 1
            return
        if not mapped and (place, area.end) != (address, address + size):
            self.contradictions += 1
            return
        self._take(place)
        if place < address:
            self._put(place, address - place, area.small, area.expandable)
        if address + size < area.end:
            self._put(address + size, area.end - address - size, area.small, area.expandable)

    def was_there(self, address: int, end: int, *, known: bool) -> None:
        """Note a block from before the trace; not ``known``: it is at least so long."""
        if address in self._ends:
            self.contradictions += 1
            return
        insort(self._blocks, address)
        self._ends[address] = end
        if not known:
            self._open.add(address)

    def settle(self) -> dict[int, int]:
        """Return what the blocks from before the trace were given, as far as it is sure already.

        In the large pool every block, free or not, is longer than 1 MiB: a shorter gap belongs
        to the block before it. In the other pools a block is as long as it was rounded to.
        """
        for address in sorted(self._open):
            limit, area = self._limit(address)
            if area is None or limit < self._ends[address]:
                continue
            if area.small or area.expandable or self._rules.expandable:
                self._open.discard(address)
            elif limit - self._ends[address] <= SMALL:
                self._ends[address] = limit
                self._open.discard(address)
        return {address: end - address for address, end in self._ends.items()}

    def place(self, address: int, size: int) -> tuple[int | None, tuple[int, int] | None]:
        """Hand out a block of so many rounded bytes.

        Returns:
            What it is given, None where that cannot be known; and, where this tells what the
            block before it was given, that block's address and bytes.
        """
        index = bisect_left(self._blocks, address)
        if address in self._ends:
            self._forget(address, index)
        limit, area = self._limit(address)
        told = None if area is None else self._before(address, index)
        given: int | None = None
        if area is not None and limit - address >= size:
            remainder = limit - address - size
            split = self._rules.splits(
                size, remainder, small=area.small, expandable=area.expandable
            )
            given = size if split else size + remainder
        elif area is not None:
            self.contradictions += 1
        self._blocks.insert(index, address)
        self._ends[address] = address + (size if given is None else given)
        return given, told

    def free(self, address: int) -> bool:
        """Take a block back; tell whether it was never sure what it had been given."""
        if address not in self._ends:
            return False
        unsure = address in self._open
        self._forget(address, bisect_left(self._blocks, address))
        return unsure

    def _before(self, address: int, index: int) -> tuple[int, int] | None:
        """Check that the free memory begins here; return what that tells of its neighbour."""
        place = self._area(address)
        neighbour = self._blocks[index - 1] if index else -1
        if place is None or neighbour < place:
            self.contradictions += place != address
            return None
        if neighbour in self._open and self._ends[neighbour] <= address:
            self._open.discard(neighbour)
            self._ends[neighbour] = address
            return neighbour, address - neighbour
        self.contradictions += self._ends[neighbour] != address
        return None

    def _limit(self, address: int) -> tuple[int, _Area | None]:
        """Return how far memory reaches from an address, up to the next block, and where it is."""
        place = self._area(address)
        if place is None:
            return address, None
        area = self._areas[place]
        index = bisect_right(self._blocks, address)
        following = self._blocks[index] if index < len(self._blocks) else area.end
        return min(following, area.end), area

    def _area(self, address: int) -> int | None:
        index = bisect_right(self._places, address) - 1
        if index < 0 or self._areas[self._places[index]].end <= address:
            return None
        return self._places[index]

    def _put(self, address: int, size: int, small: bool, expandable: bool) -> None:
        if address in self._areas:
            self.contradictions += 1
            return
        insort(self._places, address)
        self._areas[address] = _Area(address + size, small, expandable)

    def _take(self, address: int) -> None:
        del self._areas[address]
        del self._places[bisect_left(self._places, address)]

    def _forget(self, address: int, index: int) -> None:
        del self._blocks[index]
        del self._ends[address]
        self._open.discard(address)
