"""Search for the holders of objects, level by level and for all targets at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, compress, repeat, starmap, tee
from operator import is_, is_not, itemgetter
from types import FunctionType
from typing import Any, NamedTuple

from tensorlens.heap.attributes import MODULES, is_subtype, vars_of_module
from tensorlens.heap.paths.nodes import (
    NAMESPACES,
    PathNode,
    PathRoot,
    RootKind,
    RootTable,
    is_own,
    is_running,
    namespace_name,
)
from tensorlens.heap.reference_names import class_text

MAX_OBJECTS_PER_QUESTION = 100
"""Objects in one question, at most: its time grows with their number."""

MAX_OBJECTS = 500
"""Objects asked about in all, at most."""

MAX_HOLDERS_PER_ANSWER = 20_000
"""Holders of one answer that are looked at, at most."""

_ATOMIC_TYPES = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
"""Types of values that many objects share; their holders are not searched."""

_MAX_TUPLE_DEPTH = 4
"""Depth to which tuples in tuples are followed."""

UNSEEN = "or a holder outside of Python"
"""End of both texts of an unseen root."""
OUTSIDE = f"a loop or a call that runs, {UNSEEN}"
UNREAD = f"a variable of a running function, {UNSEEN} (C++ or NumPy)"


class Answer(NamedTuple):
    """Holders of the objects asked for."""

    holders: list[Any]
    """All except tuples."""
    addresses: list[int]
    """Addresses of the tuples."""
    items: list[list[Any]]
    """Content of each tuple."""


def ask(objects: list[Any], hops: int = 0) -> Answer:
    """Return the holders of ``objects``, or of the tuples that lead to them over ``hops`` tuples.

    Objects that the collector does not track, or that are frozen, are not found. No reference to
    a tuple is ever kept: a tuple is made in steps, and its maker fails if another thread, running
    in between, refers to it. So each question is one call into C, which returns the addresses of
    tuples and copies of their items.
    """
    # marks the tuple of arguments, which is one of the holders found from 3.13 on
    mark = object()
    source: Iterator[Any] = chain.from_iterable(starmap(gc.get_referrers, [(mark, *objects)]))
    for _ in range(hops):
        # a new mark: this tuple is being made while the question before is answered
        mark = object()
        # popped from the list, the iterator is gone before the collector can find it
        tuples = map([chain([mark], _tuples(source))].pop, (0,))
        source = chain.from_iterable(starmap(gc.get_referrers, map(tuple, tuples)))
    first, types, second = tee(source, 3)
    again, third = tee(_tuples(second))
    # an unfinished tuple has empty slots: only the collector's functions may read it
    items, ends = tee(map(gc.get_referents, third))
    kept, kept_too = tee(map(is_not, map(itemgetter(-1), ends), repeat(mark)))
    # only the list may refer to the streams: an exhausted one still holds its last item
    streams: list[Iterator[Any]] = [
        compress(first, map(is_not, map(type, types), repeat(tuple))),
        compress(map(id, again), kept),
        compress(items, kept_too),
    ]
    del source, first, types, second, third, again, items, ends, kept, kept_too
    holders, addresses, contents = map(list, map(streams.pop, (0, 0, 0)))
    for each in contents:
        # get_referents() returns the last item first
        each.reverse()
    return Answer(holders, addresses, contents)


def _tuples(found: Iterator[Any]) -> Iterator[Any]:
    first, second = tee(found)
    return compress(first, map(is_, map(type, second), repeat(tuple)))


class Search:
    """Search for the holders of some objects, as far as Python can see them."""

    def __init__(self, targets: Sequence[object], skip: Collection[int], depth: int) -> None:
        counts = [count - _CALL_REFERENCES for count in map(sys.getrefcount, targets)]
        self.root_table = RootTable()
        self._depth = depth
        self._asked = 0
        # kept alive: its references are in the counts, and the search finds them
        self._given = targets
        self._skip = {*skip, id(targets)}
        self.nodes: dict[int, PathNode] = {}
        self.targets = [self._node(target) for target in targets]
        self._counts = dict(zip((node.address for node in self.targets), counts, strict=True))

    def run(self, is_enough: Callable[[PathNode], bool]) -> None:
        """Search until enough is known of each target or nothing is left to ask."""
        while frontier := self._frontier(is_enough):
            self._ask(frontier)
        self._add_given_roots()
        self._add_unseen_roots()

    def clear(self) -> None:
        """Drop all references to objects."""
        for node in self.nodes.values():
            node.object = node.items = None
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

    def _tuple(self, address: int, items: list[Any]) -> PathNode:
        node = self.nodes.get(address)
        if node is None:
            node = self.nodes[address] = PathNode(address, None, items, asked=True)
            node.roots += self.root_table.roots.get(address, ())
            self._skip.add(id(items))
        return node

    def _frontier(self, is_enough: Callable[[PathNode], bool]) -> list[PathNode]:
        found: dict[int, PathNode] = {}
        for target in self.targets:
            above = ancestors(target)
            waiting = [node for node in above if not node.asked and self._can_ask(node)]
            if waiting and not (target.asked and is_enough(target)):
                found.update((node.address, node) for node in waiting)
        left = min(MAX_OBJECTS_PER_QUESTION, MAX_OBJECTS - self._asked)
        return sorted(found.values(), key=lambda node: node.distance)[: max(left, 0)]

    def _can_ask(self, node: PathNode) -> bool:
        if node.distance >= self._depth or node.address in self._skip or is_atomic(node.object):
            return False
        return not any(root.kind in NAMESPACES for root in node.roots)

    def _ask(self, frontier: list[PathNode]) -> None:
        objects = [node.object for node in frontier]
        self._asked += len(objects)
        for node in frontier:
            node.asked = True
        wanted = {node.address: node for node in frontier}
        for hops in range(_MAX_TUPLE_DEPTH):
            answer = ask(objects, hops)
            if len(answer.holders) > MAX_HOLDERS_PER_ANSWER:
                for node in wanted.values():
                    node.is_crowded = True
            for holder in answer.holders[:MAX_HOLDERS_PER_ANSWER]:
                if holder is not objects:
                    self._take(holder, wanted)
            wanted = self._take_tuples(answer, wanted)
            # else its lists would be found as holders
            del answer
            if not wanted:
                break

    def _take_tuples(self, answer: Answer, wanted: dict[int, PathNode]) -> dict[int, PathNode]:
        tuples: dict[int, PathNode] = {}
        for address, items in zip(answer.addresses, answer.items, strict=True):
            hits = [wanted[place] for place in map(id, items) if place in wanted]
            for child in hits:
                child.references += 1
            if hits and address not in self._skip:
                is_new = address not in self.nodes
                holder = self._tuple(address, items)
                if is_new:
                    tuples[address] = holder
                for child in hits:
                    # the copy of the items adds a reference; a target was counted before that
                    child.references += is_new and child.address not in self._counts
                    self._link(holder, child)
        return tuples

    def _take(self, holder: Any, wanted: dict[int, PathNode]) -> None:
        if is_subtype(type(holder), MODULES):
            node = wanted.get(id(vars_of_module(holder)))
            if node is not None:
                node.add_root(PathRoot(RootKind.GLOBAL, namespace_name(node.object)))
                node.references += 1
            return
        if type(holder) is PathNode or is_running(holder):
            return
        places = filter(wanted.__contains__, map(id, gc.get_referents(holder)))
        hits = [wanted[place] for place in places]
        for child in hits:
            child.references += 1
        if id(holder) in self._skip:
            return
        if id(holder) in self.root_table.own_globals or is_own(holder):
            for child in hits:
                child.own = True
            return
        for child in hits:
            if type(holder) is FunctionType and holder.__globals__ is child.object:
                child.add_root(PathRoot(RootKind.GLOBAL, namespace_name(child.object)))
            elif type(child.object) is dict and is_subtype(type(holder), type):
                child.add_root(PathRoot(RootKind.CLASS, class_text(holder)))
            else:
                self._link(self._node(holder), child)

    def _link(self, holder: PathNode, child: PathNode) -> None:
        if not holder.distance and not any(holder is target for target in self.targets):
            holder.distance = child.distance + 1
        child.add_holder(holder)

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
            if node.address in known or node.address in met or node.address in self._counts:
                continue
            met.add(node.address)
            if node.is_plain:
                left += below.get(node.address, ())
            else:
                node.add_root(PathRoot(RootKind.GIVEN))

    def _add_unseen_roots(self) -> None:
        """Add a root to targets and unreached objects with holders not searched or not visible."""
        known = _reachable_addresses(self.nodes.values())
        for node in self.nodes.values():
            is_target = node.address in self._counts
            if node.address in known and not is_target:
                continue
            if node.address in self._skip or (node.items is None and is_atomic(node.object)):
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
        if node.items is not None:
            # its references cannot be counted, but something holds it
            is_held = node.holders or node.own or self.root_table.variables[node.address]
            return 0 if is_held else 1
        count = self._counts.get(node.address)
        if count is None:
            count = sys.getrefcount(node.object) - _NODE_REFERENCES
        return count - node.references - self.root_table.variables[node.address]


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


def _count_of_one() -> int:
    return next(map(sys.getrefcount, [object()])) - 1


def _count_of_held() -> int:
    node = PathNode(0, object())
    return sys.getrefcount(node.object)


_CALL_REFERENCES = _count_of_one()
_NODE_REFERENCES = _count_of_held()
