"""In which order those who wait for an operation are told that it is done.

The executor goes along a node's outgoing edges in the order in which they were added, those that
hand something on before those that only order. A graph is built from its definition node by node,
of those that are ready the one with the lowest number first
(``core/common_runtime/graph_constructor.cc``). Nodes that oneDNN's kernels took the place of have
the highest numbers, in reverse post-order of the graph before
(``core/common_runtime/mkl_layout_pass.cc``). More than eight edges are kept in a hash set of their
addresses (``core/graph/edgeset.h``), and so are those to where a search begins: this order is
another in every process (all TensorFlow 2.21).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence

from tensorlens.frameworks.tensorflow.estimate.nodes import Node

_REPLACED = frozenset(
    (
        *("MatMul", "_FusedMatMul", "BatchMatMul", "BatchMatMulV2", "Einsum", "Softmax"),
        *("Conv2D", "_FusedConv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
        *("Conv3D", "_FusedConv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
        *("MaxPool", "MaxPoolGrad", "MaxPool3D", "MaxPool3DGrad", "AvgPool", "AvgPoolGrad"),
        *("AvgPool3D", "AvgPool3DGrad", "Transpose"),
    )
)
_INLINE = 8
"""Edges beyond which there is a hash set."""
_BACK = ("NextIteration", "RefNextIteration")

Consumer = tuple[int, int, int]
"""Output, operation and input that reads it; output and input -1 where it only comes first."""


def in_order_of_building(nodes: Sequence[Node], seed: int) -> Mapping[int, Sequence[Consumer]]:
    """Return everyone's consumers as the edges of the graph that runs are.

    Args:
        nodes: the graph, connected.
        seed: of the addresses; 0: hash sets are in order of building.
    """
    chance = random.Random(seed) if seed else None
    ranks = {node.number: rank for rank, node in enumerate(nodes)}
    edges = _edges(nodes, _places(nodes, ranks), chance)
    found = _reverse_post_order(nodes, edges, chance)
    replaced = [number for number in found if nodes[number].op in _REPLACED]
    kept = [node.number for node in nodes if node.op not in _REPLACED]
    ranks = {number: rank for rank, number in enumerate([*kept, *replaced])}
    edges = _edges(nodes, _places(nodes, ranks), chance)
    return {number: sorted(each, key=lambda edge: edge[2] < 0) for number, each in edges.items()}


def _edges(
    nodes: Sequence[Node], places: Mapping[int, int], chance: random.Random | None
) -> dict[int, list[Consumer]]:
    found = {}
    for node in nodes:
        edges = sorted(node.consumers, key=lambda each: (places[each[1]], each[2]))
        if chance is not None and len(edges) > _INLINE:
            chance.shuffle(edges)
        found[node.number] = edges
    return found


def _reverse_post_order(
    nodes: Sequence[Node], edges: Mapping[int, Sequence[Consumer]], chance: random.Random | None
) -> list[int]:
    """Return a topological order: of all that come after an operation, those searched last."""
    roots = [node.number for node in nodes if not node.inputs and not node.controls]
    if chance is not None:
        chance.shuffle(roots)
    seen: set[int] = set()
    left: list[int] = []
    stack = [(number, False) for number in roots]
    while stack:
        number, leaves = stack.pop()
        if leaves:
            left.append(number)
        elif number not in seen:
            seen.add(number)
            stack.append((number, True))
            stack += [(reader, False) for _, reader, _ in edges[number] if reader not in seen]
    return left[::-1]


def _places(nodes: Sequence[Node], ranks: Mapping[int, int]) -> dict[int, int]:
    """Return at which place each node is added."""
    waiting = {node.number: _inputs(nodes, node) for node in nodes}
    ready = [ranks[number] for number, count in waiting.items() if not count]
    by_rank = {rank: number for number, rank in ranks.items()}
    heapq.heapify(ready)
    places: dict[int, int] = {}
    while ready:
        number = by_rank[heapq.heappop(ready)]
        places[number] = len(places)
        if nodes[number].op in _BACK:
            continue
        for _, reader, _ in nodes[number].consumers:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, ranks[reader])
    for node in nodes:
        places.setdefault(node.number, len(places))
    return places


def _inputs(nodes: Sequence[Node], node: Node) -> int:
    sources = [source for source, _ in node.inputs] + list(node.controls)
    return sum(nodes[source].op not in _BACK for source in sources)
