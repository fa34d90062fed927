"""In which order those who wait for an operation are told that it is done.

The executor goes along a node's outgoing edges in the order in which they were added, those that
hand something on before those that only order. A graph is built from its definition node by node,
of those that are ready the one with the lowest number first
(``core/common_runtime/graph_constructor.cc``). Nodes that oneDNN's kernels took the place of have
the highest numbers, in reverse post-order of the graph before
(``core/common_runtime/mkl_layout_pass.cc``). More than eight edges, and so those to where a run
and a search begin, are in an order of their own (:mod:`.edge_sets`), another in every process (all
TensorFlow 2.21).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorlens.frameworks.tensorflow.estimate.building import built
from tensorlens.frameworks.tensorflow.estimate.edge_sets import EDGE, NODE, Arena, in_order
from tensorlens.frameworks.tensorflow.estimate.nodes import BACK, Node, sources_of, starts_of
from tensorlens.frameworks.tensorflow.estimate.onednn import is_merged

_REPLACED = frozenset(
    (
        *("MatMul", "_FusedMatMul", "BatchMatMul", "BatchMatMulV2", "Einsum", "Softmax"),
        *("Conv2D", "_FusedConv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
        *("Conv3D", "_FusedConv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
        *("MaxPool", "MaxPoolGrad", "MaxPool3D", "MaxPool3DGrad", "AvgPool", "AvgPoolGrad"),
        *("AvgPool3D", "AvgPool3DGrad", "Transpose"),
    )
)
_ADDRESSES, _ALIGNED = 1 << 20, 16
_ENDS = 2
"""Nodes that every graph has: one before all, one after all."""

Consumer = tuple[int, int, int]
"""Output, operation and input that reads it; output and input -1 where it only comes first."""


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges of a graph in the order in which the executor goes along them."""

    starts: Sequence[int]
    """Numbers of the operations that wait for no other."""
    consumers: Mapping[int, Sequence[Consumer]]


def as_connected(nodes: Sequence[Node]) -> Edges:
    """Return the edges in the order in which the graph has them."""
    starts = [node.number for node in starts_of(nodes)]
    return Edges(starts, {node.number: node.consumers for node in nodes})


class Building:
    """How the graph that runs is built, in any process.

    Args:
        nodes: the graph, connected.
        by_onednn: whether oneDNN's kernels took the place of others.
        before: the graph before operations were merged; None: the same.
    """

    def __init__(
        self, nodes: Sequence[Node], *, by_onednn: bool, before: Sequence[Node] | None = None
    ) -> None:
        self._nodes = nodes
        self._before = nodes if before is None else before
        self._by_onednn = by_onednn
        places = _places(self._before, [node.number for node in self._before])
        self._order = sorted(places, key=lambda number: places[number])
        self._layout = _Layout(self._before, places)
        self._numbers = {node.name: node.number for node in nodes}

    def edges(self, seed: int) -> Edges:
        """Return the edges of one process.

        Args:
            seed: of the addresses; 0: hash sets are in order of building.
        """
        chance = random.Random(seed) if seed else None
        order, before = self._order, self._before
        if self._by_onednn:
            found = _reverse_post_order(self._layout.at(_address(chance)))
            replaced = [number for number in found if before[number].op in _REPLACED]
            order = [number for number in order if before[number].op not in _REPLACED] + replaced
        names = (before[number].name for number in order)
        kept = [self._numbers[name] for name in names if name in self._numbers]
        kept.sort(key=lambda number: _group(self._nodes[number]))
        layout = _Layout(self._nodes, _places(self._nodes, kept), copied=True)
        edges = layout.at(_address(chance))
        consumers = {
            number: sorted(each, key=lambda edge: edge[2] < 0)
            for number, each in edges.consumers.items()
        }
        return Edges(edges.starts, consumers)


def _address(chance: random.Random | None) -> int | None:
    return chance.randrange(_ADDRESSES) * _ALIGNED if chance else None


def _group(node: Node) -> tuple[int, int]:
    """Return which nodes come before others in a function's body: arguments, then all the rest."""
    if node.op == "_Arg":
        return 0, node.attrs["index"]
    return (2 if node.op == "_Retval" else 1), 0


class _Layout:
    """The edges of a graph that is built anew, or of a copy of it, which is what runs.

    Args:
        nodes: the graph.
        places: at which place each node is added.
        copied: whether it is a copy.
    """

    def __init__(
        self, nodes: Sequence[Node], places: Mapping[int, int], *, copied: bool = False
    ) -> None:
        self._copied = copied
        arena = Arena(0)
        # what is folded was added when all else was there
        in_place = sorted(nodes, key=lambda node: (copied and node.is_folded, places[node.number]))
        for _ in range(_ENDS + (len(nodes) if copied else 0)):
            arena.take(NODE)
        self._consumers: dict[int, list[tuple[int, Consumer]]] = {node.number: [] for node in nodes}
        late: list[tuple[int, Consumer]] = []
        for node in in_place:
            if not copied:
                arena.take(NODE)
            for source, edge in _into(node):
                if not copied and (is_merged(node) or is_merged(nodes[source])):
                    late.append((source, edge))
                else:
                    self._consumers[source].append((arena.take(EDGE), edge))
        for source, edge in late:
            self._consumers[source].append((arena.take(EDGE), edge))
        self._starts = [(arena.take(EDGE), node.number) for node in starts_of(in_place)]

    def at(self, address: int | None) -> Edges:
        """Return the edges of a graph whose first block is there; None: in order of building."""
        starts = in_order(self._starts, address, at_once=False)
        consumers = {
            number: in_order(edges, address, at_once=self._copied)
            for number, edges in self._consumers.items()
        }
        return Edges(starts, consumers)


def _into(node: Node) -> list[tuple[int, Consumer]]:
    """Return the edges into a node, each with the node that it comes from."""
    found = [
        (source, (slot, node.number, place)) for place, (source, slot) in enumerate(node.inputs)
    ]
    return found + [(source, (-1, node.number, -1)) for source in node.controls]


def _reverse_post_order(edges: Edges) -> list[int]:
    """Return a topological order: of all that come after an operation, those searched last."""
    seen: set[int] = set()
    left: list[int] = []
    stack = [(number, False) for number in edges.starts]
    while stack:
        number, leaves = stack.pop()
        if leaves:
            left.append(number)
        elif number not in seen:
            seen.add(number)
            stack.append((number, True))
            readers = edges.consumers[number]
            stack += [(reader, False) for _, reader, _ in readers if reader not in seen]
    return left[::-1]


def _places(nodes: Sequence[Node], by_rank: Sequence[int]) -> dict[int, int]:
    """Return at which place each node is added.

    Args:
        nodes: the graph.
        by_rank: their numbers, as they are defined.
    """
    at = {number: place for place, number in enumerate(by_rank)}
    sources = [
        [at[source] for source in sources_of(node)]
        for node in (nodes[number] for number in by_rank)
    ]
    back = {at[node.number] for node in nodes if node.op in BACK}
    found = {by_rank[place]: rank for rank, place in enumerate(built(sources, back))}
    for node in nodes:
        found.setdefault(node.number, len(found))
    return found
