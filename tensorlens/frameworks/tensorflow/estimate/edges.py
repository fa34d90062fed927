"""In which order those who wait for an operation are told that it is done.

The executor goes along a node's outgoing edges in the order in which they were added. A graph is
built from its definition node by node, of those that are ready the one with the lowest number
first (``core/common_runtime/graph_constructor.cc``); nodes that oneDNN's kernels took the place of
have the highest numbers (``core/common_runtime/mkl_layout_pass.cc``, TensorFlow 2.21).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

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
_BACK = ("NextIteration", "RefNextIteration")


def in_order_of_building(nodes: Sequence[Node]) -> None:
    """Sort everyone's consumers as the edges of the graph that runs are."""
    place = _built(nodes)
    for node in nodes:
        node.consumers.sort(key=lambda each: (place[each[1]], each[2] < 0, each[2]))


def _built(nodes: Sequence[Node]) -> dict[int, int]:
    """Return at which place each node is added."""
    first = [node.number for node in nodes if node.op not in _REPLACED]
    ranks = {number: rank for rank, number in enumerate(first)}
    for node in nodes:
        if node.number not in ranks:
            ranks[node.number] = len(ranks)
    waiting = {node.number: _inputs(nodes, node) for node in nodes}
    ready = [ranks[number] for number, count in waiting.items() if not count]
    by_rank = {rank: number for number, rank in ranks.items()}
    heapq.heapify(ready)
    place: dict[int, int] = {}
    while ready:
        number = by_rank[heapq.heappop(ready)]
        place[number] = len(place)
        if nodes[number].op in _BACK:
            continue
        for _, reader, _ in nodes[number].consumers:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, ranks[reader])
    for node in nodes:
        place.setdefault(node.number, len(place))
    return place


def _inputs(nodes: Sequence[Node], node: Node) -> int:
    sources = [source for source, _ in node.inputs] + list(node.controls)
    return sum(nodes[source].op not in _BACK for source in sources)
