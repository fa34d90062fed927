"""Adds up what the nodes of graph functions were handed, by group, when calls are over."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence

from tensorlens.frameworks.tensorflow.native import TensorflowAllocator, declare
from tensorlens.frameworks.traced_code import NodeFigures

_ENTRY = struct.Struct("=Qqii")
"""Address, bytes, number of the function, number of the node (``native/tensorflow/node_log.hpp``).

Without bytes it was freed, without an address the calls ended there.
"""


class NodeGroup:
    """What some nodes were handed, over all calls."""

    __slots__ = ("_handed", "_most", "_now", "figures")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget what was counted."""
        self.figures = NodeFigures(0, 0, 0, 0, 0, 0)
        self._now = self._handed = self._most = 0

    def take(self, nbytes: int) -> None:
        """Count what one of them was handed."""
        self._handed += nbytes
        self._now += nbytes
        self._most = max(self._most, self._now)

    def give(self, nbytes: int) -> None:
        """Count what was freed of it."""
        self._now -= nbytes

    def end_call(self) -> None:
        """Add the call to those before it."""
        before, net = self.figures, self._now
        self.figures = NodeFigures(
            hits=before.hits + 1,
            allocated=max(before.allocated, self._handed),
            peak=max(before.peak, self._most),
            net=before.net + net,
            net_max=max(before.net_max, net) if before.hits else net,
            net_first=before.net_first if before.hits else net,
        )
        self._now = self._handed = self._most = 0


_MOST_KNOWN = 1 << 16
"""Nodes whose groups are kept at hand: a program may trace anew all the time."""

GroupsOf = Callable[[str | None, str | None], Sequence[NodeGroup]]
"""Gives the groups of a node: by the name of the function called, and its own."""


class NodeLog:
    """The native log of nodes.

    Args:
        allocator: whose.
        groups_of: is asked once for each node.
    """

    def __init__(self, allocator: TensorflowAllocator, groups_of: GroupsOf) -> None:
        self._library, self._groups_of = allocator.library, groups_of
        declare(
            self._library,
            {
                "tl_nodes_begin": (ctypes.py_object, ()),
                "tl_nodes_take": (ctypes.c_int64, (ctypes.c_void_p,)),
                "tl_nodes_lost": (ctypes.c_int64, ()),
                "tl_op_name": (ctypes.c_char_p, (ctypes.c_int32,)),
            },
        )
        self.lost = self._library.tl_nodes_lost
        """How many allocations there was no room for so far."""
        self._groups: dict[tuple[int, int], Sequence[NodeGroup]] = {}

    def call(self) -> object:
        """Log a call from now on; returns what the allocator's ``end()`` takes.

        That gives whether there is anything for :meth:`add_up`: not while other calls run.
        """
        return self._library.tl_nodes_begin()

    def add_up(self) -> None:
        """Add up the calls that are over."""
        start = ctypes.c_void_p()
        count = self._library.tl_nodes_take(ctypes.byref(start))
        data = ctypes.string_at(start.value or 0, count * _ENTRY.size) if count else b""
        if len(self._groups) > _MOST_KNOWN:
            self._groups.clear()
        known, there = self._groups, dict[int, tuple[Sequence[NodeGroup], int]]()
        touched: set[NodeGroup] = set()
        for address, nbytes, function, node in _ENTRY.iter_unpack(data):
            if nbytes:
                groups = known.get((function, node))
                if groups is None:
                    groups = known[function, node] = self._groups_of(
                        self._name(function), self._name(node)
                    )
                if groups:
                    there[address] = groups, nbytes
                    touched.update(groups)
                    for group in groups:
                        group.take(nbytes)
            elif address in there:
                groups, given = there.pop(address)
                for group in groups:
                    group.give(given)
            elif not address:
                for group in touched:
                    group.end_call()
                touched.clear()
                there.clear()

    def forget_groups(self) -> None:
        """Have all nodes put into groups anew."""
        self._groups.clear()

    def _name(self, number: int) -> str | None:
        name = self._library.tl_op_name(number)
        return None if name is None else name.decode("utf-8", "replace")
