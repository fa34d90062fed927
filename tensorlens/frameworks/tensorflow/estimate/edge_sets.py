"""In which order TensorFlow goes along the edges of a node that has many.

Up to eight are in order; more are in a hash set of their addresses (``core/graph/edgeset.h``,
``xla/tsl/lib/gtl/flatrep.h``), which lie one after the other in blocks (``core/graph/graph.cc``,
``core/lib/core/arena.cc``): the order follows from where the first block is, in every process
somewhere else (all TensorFlow 2.21).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

NODE, EDGE = 216, 32
"""Bytes of the objects of a graph."""
_BLOCK, _HEADER = 8192, 16
_INLINE = 8
_FULL = 0.8
_FEWEST = 8
"""Places of the smallest set."""

Item = TypeVar("Item")


class Arena:
    """Where the objects of one graph lie.

    Args:
        first: address of the first block; the others are taken to come right after it.
    """

    def __init__(self, first: int) -> None:
        self._block = self._next = first

    def take(self, nbytes: int) -> int:
        """Return the address of a new object."""
        if self._next + nbytes > self._block + _BLOCK:
            self._block = self._next = self._block + _BLOCK + _HEADER
        found = self._next
        self._next += nbytes
        return found


def in_order(edges: Sequence[tuple[int, Item]], first: int | None, *, at_once: bool) -> list[Item]:
    """Return what belongs to edges, in the order in which a node goes along them.

    Args:
        edges: in the order in which they are added, how far each is from the first address of the
            graph, and what belongs to it.
        first: that address; None: in the order in which they are added.
        at_once: whether there was room for all from the beginning, as in a copy of a graph.
    """
    if first is None or len(edges) <= _INLINE:
        return [item for _, item in edges]
    found: _HashSet[Item] = _HashSet(len(edges) if at_once else 1)
    for distance, item in edges:
        found.add(first + distance, item)
    return [item for _, item in found.each()]


class _HashSet(Generic[Item]):
    def __init__(self, room: int) -> None:
        self._begin(room)

    def add(self, address: int, item: Item) -> None:
        if self._count >= int(len(self._places) * _FULL):
            before = list(self.each())
            self._begin(len(before) + 1)
            for each in before:
                self._put(*each)
        self._put(address, item)

    def each(self) -> Iterable[tuple[int, Item]]:
        return (each for each in self._places if each is not None)

    def _begin(self, room: int) -> None:
        size = _FEWEST
        while room >= _FULL * size:
            size *= 2
        self._places: list[tuple[int, Item] | None] = [None] * size
        self._count = 0

    def _put(self, address: int, item: Item) -> None:
        last = len(self._places) - 1
        place, probes = (address + (address >> 6)) >> 8 & last, 1
        while self._places[place] is not None:
            place, probes = (place + probes) & last, probes + 1
        self._places[place] = address, item
        self._count += 1
