"""Search for the holders of objects, level by level and for all targets at once."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Iterator, Sequence
from types import FunctionType
from typing import Any

from tensorlens.heap.attributes import MODULES, is_subtype, vars_of_module
from tensorlens.heap.native import FoundReference, How, NativeHeap
from tensorlens.heap.paths.nodes import (
    NAMESPACES,
    PathNode,
    PathRoot,
    Place,
    RootKind,
    RootTable,
    is_own,
    is_running,
    namespace_name,
)
from tensorlens.heap.reference_names import class_text
from tensorlens.records.names import key_text

_ATOMIC_TYPES = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
"""Types of values that many objects share; their holders are not searched."""

UNSEEN = "or a holder outside of Python"
"""End of both texts of an unseen root."""
OUTSIDE = f"a loop or a call that runs, {UNSEEN}"
UNREAD = f"a variable of a running function, {UNSEEN} (C++ or NumPy)"


class Search:
    """Search for the holders of some objects, as far as Python can see them."""

    def __init__(self, targets: Sequence[object], skip: Collection[int]) -> None:
        self.root_table = RootTable()
        # kept alive: its references to the targets are found and counted
        self._given = targets
        self._skip = {*skip, id(targets)}
        self.nodes: dict[int, PathNode] = {}
        self.targets = [self._node(target) for target in targets]
        self._wanted = frozenset(self.nodes)

    def run(self, reader: NativeHeap) -> None:
        """Find holders and roots; call :meth:`clear` afterwards, also if this fails."""
        self._link(reader)
        self._add_given_roots()
        self._add_unseen_roots()

    def clear(self) -> None:
        """Drop all references to objects."""
        for node in self.nodes.values():
            node.object = None
            node.holders.clear()
        self.nodes.clear()
        self.targets.clear()

    def _node(self, found: Any) -> PathNode:
        node = self.nodes.get(id(found))
        if node is None:
            node = self.nodes[id(found)] = PathNode(id(found), found)
            known = self.root_table.roots.get(id(found), ())
            if is_atomic(found):
                pass
            elif is_subtype(type(found), type):
                node.add_root(PathRoot(RootKind.CLASS, class_text(found)))
            else:
                # a variable's name says less than a module's
                is_module = any(root.kind == RootKind.GLOBAL for root in known)
                node.roots += [
                    root for root in known if root.kind == RootKind.GLOBAL or not is_module
                ]
        return node

    def _link(self, reader: NativeHeap) -> None:
        """Link all nodes to their holders, as far as they are found."""
        table = self.root_table
        wanted = array("Q", (each.address for each in self.nodes.values() if self._can_ask(each)))
        if not wanted:
            return
        ends = {*self._skip, *table.own_places, *table.globals}
        found, searched = reader.references(wanted, array("Q", ends))
        above: dict[int, list[FoundReference]] = {}
        for reference in found:
            above.setdefault(reference.child, []).append(reference)
        # _take() appends the holders that it meets
        nodes = [*self.nodes.values()]
        for node in nodes:
            node.asked = node.address in searched
            node.is_crowded = not searched.get(node.address, True)
            for reference in above.get(node.address, ()):
                self._take(reference, node, nodes)

    def _can_ask(self, node: PathNode) -> bool:
        is_end = any(root.kind in NAMESPACES for root in node.roots)
        return not (is_end or node.address in self._skip or is_atomic(node.object))

    def _take(self, reference: FoundReference, child: PathNode, nodes: list[PathNode]) -> None:
        holder = reference.holder
        kind = type(holder)
        if is_subtype(kind, MODULES):
            if vars_of_module(holder) is child.object:
                child.add_root(PathRoot(RootKind.GLOBAL, namespace_name(child.object)))
                child.references += reference.references
            return
        if kind is PathNode or is_running(holder):
            return
        child.references += reference.references
        if reference.address in self._skip:
            return
        if reference.address in self.root_table.own_places or is_own(holder):
            child.own = True
        elif kind is FunctionType and holder.__globals__ is child.object:
            child.add_root(PathRoot(RootKind.GLOBAL, namespace_name(child.object)))
        elif type(child.object) is dict and is_subtype(kind, type):
            child.add_root(PathRoot(RootKind.CLASS, class_text(holder)))
        else:
            node = self.nodes.get(reference.address)
            if node is None:
                node = self._tuple(reference) if kind is int else self._node(holder)
                nodes.append(node)
            child.holders.setdefault(node, _place(reference))

    def _tuple(self, reference: FoundReference) -> PathNode:
        node = PathNode(reference.address, None, reference.holder)
        node.roots += self.root_table.roots.get(reference.address, ())
        self.nodes[reference.address] = node
        return node

    def _add_given_roots(self) -> None:
        """Add a root to each object that only the profiler holds, such as a step function."""
        below, known = _children(self.nodes.values()), _reachable_addresses(self.nodes.values())
        variables = self.root_table.variables
        left = [
            node
            for node in self.nodes.values()
            if node.own or (variables[node.address] and node.address not in known)
        ]
        met: set[int] = set()
        while left:
            node = left.pop()
            if node.address in known or node.address in met or node.address in self._wanted:
                continue
            met.add(node.address)
            if node.is_plain:
                left += below.get(node.address, ())
            else:
                node.add_root(PathRoot(RootKind.GIVEN))

    def _add_unseen_roots(self) -> None:
        """Add a root to each target or unreached object whose holders are not all known."""
        known = _reachable_addresses(self.nodes.values())
        for node in self.nodes.values():
            if node.address in known and node.address not in self._wanted:
                continue
            if node.address in self._skip or (not node.is_tuple and is_atomic(node.object)):
                continue
            if not node.asked:
                node.add_root(PathRoot(RootKind.CUT))
                continue
            if self._unseen_references(node) > 0:
                text = OUTSIDE if self.root_table.reads_variables else UNREAD
                node.add_root(PathRoot(RootKind.UNSEEN, text))

    def _unseen_references(self, node: PathNode) -> int:
        """Return the number of references to an object that have not been found."""
        if node.is_crowded:
            return 0
        if node.is_tuple:
            # its references cannot be counted, but something holds it
            is_held = node.holders or node.own or self.root_table.variables[node.address]
            return 0 if is_held else 1
        count = sys.getrefcount(node.object) - _NODE_REFERENCES
        return count - node.references - self.root_table.variables[node.address]


def _place(reference: FoundReference) -> Place:
    """Return the place of a reference as numbers and texts, which keep no object alive."""
    how, value = reference.how, reference.value
    if how in (How.VALUE, How.ATTRIBUTE):
        return Place(how, key=value if type(value) is str else None, text=key_text(value))
    return Place(how, value)


def is_atomic(found: Any) -> bool:
    """Return whether an object is a plain value, which many objects share."""
    return any(type(found) is atomic for atomic in _ATOMIC_TYPES)


def _children(nodes: Collection[PathNode]) -> dict[int, list[PathNode]]:
    below: dict[int, list[PathNode]] = {}
    for node in nodes:
        for holder in node.holders:
            below.setdefault(holder.address, []).append(node)
    return below


def _reachable_addresses(nodes: Collection[PathNode]) -> set[int]:
    """Return the addresses of nodes on paths from roots."""
    below = _children(nodes)
    left = [node for node in nodes if node.roots]
    found = {node.address for node in left}
    while left:
        for child in below.get(left.pop().address, ()):
            if child.address not in found:
                found.add(child.address)
                left.append(child)
    return found


def ancestors(target: PathNode) -> Iterator[PathNode]:
    """Yield an object and all its direct and indirect holders, the nearest first."""
    met = {target.address}
    level = [target]
    while level:
        yield from level
        above = []
        for node in level:
            for holder in node.holders:
                if holder.address not in met:
                    met.add(holder.address)
                    above.append(holder)
        level = above


def _count_of_held() -> int:
    node = PathNode(0, object())
    return sys.getrefcount(node.object)


_NODE_REFERENCES = _count_of_held()
