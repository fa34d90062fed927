"""What becomes of a graph when the function that it is the body of is made ready to run.

``GraphOptimizer`` (``core/common_runtime/graph_optimizer.cc``, TensorFlow 2.21) comes after
Grappler and oneDNN: it computes what follows from constants alone (``constant_folding.cc``) and
was left by Grappler, which is the empty lists of loops, and has one operation for all that are the
same (``core/graph/optimizer_cse.cc``), such as what hands one value to a loop twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensorflow.python.framework import op_def_registry

from tensorlens.frameworks.tensorflow.estimate.building import built
from tensorlens.frameworks.tensorflow.estimate.nodes import BACK, Node, connect, sources_of

_FOLDED = ("EmptyTensorList", "TensorListReserve")
"""Of which nothing but their numbers is read, if that."""
_ARGUMENTS = ("Placeholder", "PlaceholderWithDefault", "VarHandleOp", "_Arg", "_Retval")


def merged(nodes: Sequence[Node]) -> list[Node]:
    """Return the graph without what is there twice; what was folded comes last, by name."""
    back = {node.number for node in nodes if node.op in BACK}
    order = built([sources_of(node) for node in nodes], back)
    fixed = _fixed(nodes, order)
    folded = {number for number in fixed if nodes[number].op != "Const"}
    same: dict[int, int] = {}
    known: dict[Any, int] = {}
    for number in order:
        node = nodes[number]
        if number in folded or node.op in _ARGUMENTS or _has_state(node.op):
            continue
        inputs = tuple((same.get(source, source), slot) for source, slot in node.inputs)
        controls = tuple(sorted({same.get(source, source) for source in node.controls}))
        first = known.setdefault((node.op, inputs, controls, node.signature), number)
        if first != number:
            same[number] = first
    left = [node for node in nodes if node.number not in same and node.number not in folded]
    made = (_without_inputs(nodes, nodes[number]) for number in folded)
    left += sorted(made, key=lambda node: node.name)
    return _renumbered(_alive(left, folded, same), same)


def _fixed(nodes: Sequence[Node], order: Sequence[int]) -> set[int]:
    """Return the numbers of constants, and of what follows from them alone."""
    found: set[int] = set()
    for number in order:
        node = nodes[number]
        if node.op == "Const":
            if not node.controls:
                found.add(number)
        elif node.op in _FOLDED and found.issuperset(sources_of(node)):
            found.add(number)
    return found


def _without_inputs(nodes: Sequence[Node], node: Node) -> Node:
    """Return what was folded; of a list, its length was read."""
    length = nodes[node.inputs[1][0]].value if node.op == "TensorListReserve" else None
    return replace(node, inputs=(), controls=(), value=length, is_folded=True)


def _alive(left: Sequence[Node], folded: set[int], same: Mapping[int, int]) -> list[Node]:
    """Return what is left, without constants that only what was folded has read."""
    read = {same.get(source, source) for node in left for source in sources_of(node)}
    return [
        node
        for node in left
        if node.number in read or not (node.op == "Const" or node.number in folded)
    ]


def _renumbered(left: Sequence[Node], same: Mapping[int, int]) -> list[Node]:
    numbers = {node.number: number for number, node in enumerate(left)}
    numbers |= {gone: numbers[first] for gone, first in same.items() if first in numbers}
    found = []
    for node in left:
        made = replace(
            node,
            number=numbers[node.number],
            inputs=[(numbers[each], slot) for each, slot in node.inputs],
            controls=list(dict.fromkeys(numbers[each] for each in node.controls)),
            consumers=[],
        )
        found.append(made)
    connect(found)
    return found


def _has_state(op: str) -> bool:
    known = op_def_registry.get(op)
    return known is None or bool(known.is_stateful)
