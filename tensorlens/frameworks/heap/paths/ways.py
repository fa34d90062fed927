"""The ways from a root to an object, in the part of the heap that a search has seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorlens.frameworks.heap.paths.nodes import (
    CUT,
    HELD,
    NO_MORE,
    TEMPORARY,
    UNKNOWN,
    Node,
    Root,
)

_LAST = {HELD: 1, TEMPORARY: 1, UNKNOWN: 1, CUT: 2}


@dataclass(frozen=True, slots=True)
class Way:
    """Nodes from where a way begins to its target, and the beginning."""

    root: Root
    nodes: tuple[Node, ...]

    @property
    def last(self) -> int:
        """The address of what holds the target."""
        return self.nodes[-2].address if len(self.nodes) > 1 else 0

    @property
    def rank(self) -> tuple[int, int]:
        """What orders ways: known beginnings first, then the shortest."""
        return _LAST.get(self.root.kind, 0), len(self.nodes)


def ways(target: Node) -> Iterator[list[Way]]:
    """Yield, for each direct holder, the shortest ways through it, best first."""
    yield [Way(root, (target,)) for root in target.roots]
    for holder in target.holders:
        if holder is not target:
            yield sorted(_ways_through(holder, target), key=lambda way: way.rank)


def _ways_through(holder: Node, target: Node) -> Iterator[Way]:
    ways_down: dict[int, tuple[Node, ...]] = {holder.address: (holder, target)}
    level = [holder]
    while level:
        above = []
        for node in level:
            way = ways_down[node.address]
            for root in node.roots:
                yield Way(root, way)
            for further in node.holders:
                if any(root.kind in NO_MORE for root in further.roots):
                    # two variables of one module are two ways
                    yield from (Way(root, (further, *way)) for root in further.roots)
                elif further is not target and further.address not in ways_down:
                    ways_down[further.address] = (further, *way)
                    above.append(further)
        level = above


def count(target: Node, most: int) -> int:
    """Return how many ways from known roots there are, as soon as it is ``most``."""
    found = 0
    for several in ways(target):
        found += sum(not way.rank[0] for way in several)
        if found >= most:
            break
    return found


def shortest_cycle(node: Node) -> tuple[Node, ...] | None:
    """Return the nodes from an object back to itself, holders first."""
    if any(holder is node for holder in node.holders):
        return node, node
    level: list[tuple[Node, ...]] = [(node,)]
    met: set[int] = set()
    while level:
        above = []
        for way in level:
            for holder in way[0].holders:
                if holder is node:
                    return (node, *way)
                if holder.address not in met:
                    met.add(holder.address)
                    above.append((holder, *way))
        level = above
    return None
