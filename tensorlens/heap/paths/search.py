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

MOST_AT_ONCE = 100
"""How many objects one question is about: a question takes longer the more it is about."""

MOST_ASKED = 500
"""How many objects are asked about in all."""

MOST_ANSWERS = 20_000
"""How many holders of one answer are looked at."""

_ATOMIC = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
"""Types of values that many objects share: nobody asks who holds them."""

_MOST_TUPLES = 4
"""How deep tuples in tuples are followed."""

UNSEEN = "or a holder outside of Python"
"""The end of both texts for a path that begins where Python cannot look."""
OUTSIDE = f"a loop or a call that runs, {UNSEEN}"
UNREAD = f"a variable of a running function, {UNSEEN} (C++ or NumPy)"


class Answer(NamedTuple):
    """Who refers to the objects asked for."""

    holders: list[Any]
    """All but tuples."""
    addresses: list[int]
    """Of the tuples."""
    items: list[list[Any]]
    """Content of each tuple."""


def ask(objects: list[Any], hops: int = 0) -> Answer:
    """Return who refers to ``objects``, or to the tuples that do so over ``hops`` tuples.

    What the collector does not track or was told to freeze is not found. No tuple is ever held: a
    tuple is made in steps, and whoever makes it fails if someone else holds it when another thread
    gets its turn in between. So each question is one call into C, and of tuples it brings home
    their addresses and copies of their items.
    """
    # tells the tuples that a question is put with from others: since 3.13 they are found too
    mark = object()
    source: Iterator[Any] = chain.from_iterable(starmap(gc.get_referrers, [(mark, *objects)]))
    for _ in range(hops):
        # of its own: the tuple is in the making while the question before is answered
        mark = object()
        # taken from the list, an iterator is gone before the collector could find it
        tuples = map([chain([mark], _tuples(source))].pop, (0,))
        source = chain.from_iterable(starmap(gc.get_referrers, map(tuple, tuples)))
    first, types, second = tee(source, 3)
    again, third = tee(_tuples(second))
    # a tuple that is being made has empty places, which only the collector expects
    items, ends = tee(map(gc.get_referents, third))
    kept, kept_too = tee(map(is_not, map(itemgetter(-1), ends), repeat(mark)))
    # nothing but the list may refer to them: at their ends they still hold what they passed on
    streams: list[Iterator[Any]] = [
        compress(first, map(is_not, map(type, types), repeat(tuple))),
        compress(map(id, again), kept),
        compress(items, kept_too),
    ]
    del source, first, types, second, third, again, items, ends, kept, kept_too
    holders, addresses, contents = map(list, map(streams.pop, (0, 0, 0)))
    for each in contents:
        # the collector begins with the last
        each.reverse()
    return Answer(holders, addresses, contents)


def _tuples(found: Iterator[Any]) -> Iterator[Any]:
    first, second = tee(found)
    return compress(first, map(is_, map(type, second), repeat(tuple)))


class Search:
    """Holders of some objects, as far as they can be seen."""

    def __init__(self, targets: Sequence[object], skip: Collection[int], depth: int) -> None:
        counts = [*map(sys.getrefcount, targets)]
        self.known = RootTable()
        self._depth = depth
        self._asked = 0
        # alive as long as its references count
        self._given = targets
        self._skip = {*skip, id(targets)}
        self.nodes: dict[int, PathNode] = {}
        self.targets = [self._node(target) for target in targets]
        self._counts = {
            node.address: count - _COUNTED for node, count in zip(self.targets, counts, strict=True)
        }

    def run(self, is_enough: Callable[[PathNode], bool]) -> None:
        """Ask on until enough is known of each target, or all of it."""
        while frontier := self._frontier(is_enough):
            self._ask(frontier)
        self._begin_given()
        self._begin_unseen()

    def clear(self) -> None:
        """Let go of all objects."""
        for node in self.nodes.values():
            node.object = node.items = None
            node.holders.clear()
        self.nodes.clear()
        self.targets.clear()

    def _node(self, found: Any) -> PathNode:
        node = self.nodes.get(id(found))
        if node is None:
            node = self.nodes[id(found)] = PathNode(id(found), found)
            known = self.known.roots.get(id(found), ())
            if is_atomic(found):
                pass
            elif is_subtype(type(found), type):
                node.add_root(PathRoot(RootKind.CLASS, class_text(found)))
            else:
                # what a variable calls them says less
                is_module = any(root.kind == RootKind.GLOBAL for root in known)
                node.roots += [
                    root for root in known if root.kind == RootKind.GLOBAL or not is_module
                ]
        return node

    def _tuple(self, address: int, items: list[Any]) -> PathNode:
        node = self.nodes.get(address)
        if node is None:
            node = self.nodes[address] = PathNode(address, None, items, asked=True)
            node.roots += self.known.roots.get(address, ())
            self._skip.add(id(items))
        return node

    def _frontier(self, is_enough: Callable[[PathNode], bool]) -> list[PathNode]:
        found: dict[int, PathNode] = {}
        for target in self.targets:
            above = ancestors(target)
            waiting = [node for node in above if not node.asked and self._can_ask(node)]
            if waiting and not (target.asked and is_enough(target)):
                found.update((node.address, node) for node in waiting)
        left = min(MOST_AT_ONCE, MOST_ASKED - self._asked)
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
        for hops in range(_MOST_TUPLES):
            answer = ask(objects, hops)
            if len(answer.holders) > MOST_ANSWERS:
                for node in wanted.values():
                    node.is_crowded = True
            for holder in answer.holders[:MOST_ANSWERS]:
                if holder is not objects:
                    self._take(holder, wanted)
            wanted = self._take_tuples(answer, wanted)
            # its lists would be found as holders
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
                    # the copy of the items refers to it too; a target was counted before
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
        if id(holder) in self.known.own_globals or is_own(holder):
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

    def _begin_given(self) -> None:
        """Let paths begin at what only the profiler holds: it was given that to watch."""
        below, known = _children(self.nodes.values()), _reached(self.nodes.values())
        variables = self.known.variables
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

    def _begin_unseen(self) -> None:
        """Let paths begin at what nothing seen holds, though something does."""
        known = _reached(self.nodes.values())
        for node in self.nodes.values():
            is_target = node.address in self._counts
            if node.address in known and not is_target:
                continue
            if node.address in self._skip or (node.items is None and is_atomic(node.object)):
                continue
            if not node.asked:
                node.add_root(PathRoot(RootKind.CUT))
                continue
            if self._unseen(node) > 0:
                text = OUTSIDE if self.known.reads_variables else UNREAD
                node.add_root(PathRoot(RootKind.UNSEEN, text))

    def _unseen(self, node: PathNode) -> int:
        """Return how many references to an object have not been found."""
        if node.is_crowded:
            return 0
        if node.items is not None:
            # only seen from afar; something holds it
            is_held = node.holders or node.own or self.known.variables[node.address]
            return 0 if is_held else 1
        count = self._counts.get(node.address)
        if count is None:
            count = sys.getrefcount(node.object) - _HELD
        return count - node.references - self.known.variables[node.address]


def is_atomic(found: Any) -> bool:
    """Tell whether an object is a mere value, which many objects refer to."""
    return any(type(found) is atomic for atomic in _ATOMIC)


def _children(nodes: Collection[PathNode]) -> dict[int, list[PathNode]]:
    below: dict[int, list[PathNode]] = {}
    for node in nodes:
        for holder in node.holders:
            below.setdefault(holder.address, []).append(node)
    return below


def _reached(nodes: Collection[PathNode]) -> set[int]:
    """Return the addresses of what a path from a root leads to."""
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
    """Yield an object and all that leads to it, the nearest first."""
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


_COUNTED = _count_of_one()
_HELD = _count_of_held()
