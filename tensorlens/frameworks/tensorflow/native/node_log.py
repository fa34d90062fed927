"""Adds up the allocations of graph functions' nodes by group, while calls are followed."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from tensorlens.frameworks.tensorflow.native import TensorflowAllocator
from tensorlens.frameworks.traced_code import NodeFigures

_AT_ONCE = 256


class NodeLog:
    """The native log of nodes. Python says which nodes make up a group once it has met them."""

    def __init__(self, allocator: TensorflowAllocator) -> None:
        self._library = allocator.library
        self._declare()
        self.settle = self._library.tl_nodes_settle
        self.forget_places = self._library.tl_nodes_forget_places
        """Have all nodes put into groups anew."""
        self.clear = self._library.tl_nodes_clear
        """Forget the figures of a group."""
        self.lost = self._library.tl_nodes_lost
        """How many events could not be added up so far."""

    def call(self) -> object:
        """Log a call from now on; returns what the allocator's ``end()`` takes.

        That gives how many nodes were met that are in no group yet, and if there are none has
        added up what was logged. Else that is for :meth:`settle` to do.
        """
        return self._library.tl_nodes_begin()

    def fresh(self) -> Iterator[tuple[int, str | None, str | None]]:
        """Give the nodes that are in no group yet: key, the name of the function called, name."""
        found = array("i", bytes(12 * _AT_ONCE))
        while count := self._library.tl_nodes_fresh(found.buffer_info()[0], _AT_ONCE):
            numbers = iter(found[: 3 * count])
            for key, function, node in zip(numbers, numbers, numbers, strict=True):
                yield key, self._name(function), self._name(node)

    def place(self, key: int, groups: Sequence[int]) -> None:
        """Say in which groups a node is."""
        numbers = array("i", groups)
        self._library.tl_nodes_place(key, numbers.buffer_info()[0], len(numbers))

    def group(self) -> int:
        """Return a new group.

        Raises:
            MemoryError: there is none for it.
        """
        group = int(self._library.tl_nodes_group())
        if group < 0:
            raise MemoryError
        return group

    def figures(self, group: int) -> NodeFigures:
        """Return the figures of a group, of the calls that are over."""
        found = array("q", bytes(48))
        self._library.tl_nodes_look(group, found.buffer_info()[0])
        return NodeFigures(*found)

    def _name(self, number: int) -> str | None:
        name = self._library.tl_op_name(number)
        return None if name is None else name.decode("utf-8", "replace")

    def _declare(self) -> None:
        address, number, small = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
        signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "tl_nodes_begin": (ctypes.py_object, ()),
            "tl_nodes_fresh": (number, (address, number)),
            "tl_nodes_place": (None, (small, address, number)),
            "tl_nodes_forget_places": (None, ()),
            "tl_nodes_settle": (None, ()),
            "tl_nodes_group": (small, ()),
            "tl_nodes_look": (None, (small, address)),
            "tl_nodes_clear": (None, (small,)),
            "tl_nodes_lost": (number, ()),
            "tl_op_name": (ctypes.c_char_p, (small,)),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
