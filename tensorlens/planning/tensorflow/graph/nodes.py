"""A graph as plain data: operations, what they read, and the shapes of what they make.

Functions that it calls are linked to it. TensorFlow leaves out of a function, and of a loop's
values, what nobody reads: a gradient of a mask that nobody trains, say, and all that the forward
loop would keep for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from math import prod
from typing import Any

ITEM_SIZES: Mapping[str, int] = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "qint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16", "qint16", "quint16"), 2),
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8"), 1),
    **dict.fromkeys(("float8_e5m2", "float8_e4m3fn"), 1),
    "complex128": 16,
    "string": 24,
}
"""Bytes of an element in memory. What has none (resources, variants) takes nothing here."""

LOOPS = ("While", "StatelessWhile")
BRANCHES = ("If", "StatelessIf")

_NONE = -1, 0
"""Input or result that nobody needs."""
_CALLED: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(BRANCHES, ("then_branch", "else_branch")),
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), ("f",)),
}
"""Operation to its attributes that name functions, but for loops."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """Output of an operation: one tensor."""

    dtype: str
    shape: Shape | None
    """None where the graph does not tell."""

    @property
    def nbytes(self) -> int | None:
        """Bytes of the tensor; None where the shape is not known."""
        return None if self.shape is None else prod(self.shape) * ITEM_SIZES.get(self.dtype, 0)


@dataclass(slots=True, eq=False)
class GraphNode:
    """One operation."""

    number: int
    name: str
    op: str
    inputs: Sequence[tuple[int, int]] = ()
    """Number of the operation and of its output, for each input; -1 where nobody needs it."""
    controls: Sequence[int] = ()
    """Numbers of the operations that come before this one without giving it anything."""
    outputs: Sequence[NodeOutput] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """Plain values only: integers, texts, booleans, names of functions, lists of them."""
    value: Any = None
    """A constant's number, or a list of a few, where it is of integers or truth."""
    dtypes: Sequence[str] = ()
    """Of the inputs."""
    definition: Any = None
    """Its ``NodeDef``."""
    calls: Sequence[Graph] = ()
    """Functions that it runs: of a loop its condition and its body, of a branch both sides."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations of a step, or of a function that it calls."""

    nodes: Sequence[GraphNode]
    arguments: Sequence[int] = ()
    """Numbers of the operations that stand for what it is given."""
    results: Sequence[tuple[int, int]] = ()
    """Number of an operation and of its output, for each result; -1 where nobody needs it."""


def linked(graph: Graph, functions: Mapping[str, Graph], *, as_written: bool) -> Graph:
    """Return a step's graph, with the functions that it calls.

    Args:
        graph: of the step.
        functions: all that it may call, by name.
        as_written: whether all operations run, in the order of the program.
    """
    if as_written:
        return replace(graph, nodes=[_with_calls(each, functions) for each in graph.nodes])
    return _live(graph, functions, range(len(graph.results)))


def _live(
    graph: Graph, functions: Mapping[str, Graph], wanted: Collection[int], scope: str = ""
) -> Graph:
    """Return the part of a graph that is needed.

    Args:
        graph: which one.
        functions: all that it may call.
        wanted: places of results.
        scope: put before the names of its operations.
    """
    results = [each if place in wanted else _NONE for place, each in enumerate(graph.results)]
    needed = set(results)
    nodes: list[GraphNode] = []
    for node in reversed(_first_ready(graph.nodes)):
        slots = {slot for slot in range(len(node.outputs)) if (node.number, slot) in needed}
        acts = not node.outputs or node.op in LOOPS or node.op in _CALLED
        if not slots and not acts and node.number not in graph.arguments:
            continue
        node = replace(node, name=scope + node.name)
        node = _loop(node, functions, slots) if node.op in LOOPS else _with_calls(node, functions)
        needed.update(node.inputs)
        nodes.append(node)
    return Graph(nodes[::-1], graph.arguments, results)


def _with_calls(node: GraphNode, functions: Mapping[str, Graph]) -> GraphNode:
    if node.op in LOOPS:
        return _loop(node, functions, range(len(node.outputs)))
    called = [functions[node.attrs[name]] for name in _CALLED.get(node.op, ())]
    if not called:
        return node
    scope = f"{node.name}/"
    calls = [_live(each, functions, range(len(each.results)), scope) for each in called]
    return replace(node, calls=calls)


def _loop(node: GraphNode, functions: Mapping[str, Graph], slots: Collection[int]) -> GraphNode:
    scope = f"{node.name}/"
    condition = _live(functions[node.attrs["cond"]], functions, (0,), scope)
    wanted = {*slots, *_read(condition)}
    while True:
        body = _live(functions[node.attrs["body"]], functions, wanted, scope)
        if wanted.issuperset(_read(body)):
            break
        wanted.update(_read(body))
    inputs = [each if place in wanted else _NONE for place, each in enumerate(node.inputs)]
    return replace(node, inputs=inputs, calls=(condition, body))


def _read(graph: Graph) -> set[int]:
    """Return the places of the arguments that are needed."""
    needed = {number for node in graph.nodes for number, _ in node.inputs}
    needed.update(number for number, _ in graph.results)
    return {place for place, number in enumerate(graph.arguments) if number in needed}


def _first_ready(nodes: Sequence[GraphNode]) -> list[GraphNode]:
    """Return the operations in a topological order: those that are ready first come first."""
    # what is ready at once comes in the order of the nodes
    sorter: TopologicalSorter[int] = TopologicalSorter({node.number: () for node in nodes})
    for node in nodes:
        sorter.add(node.number, *(number for number, _ in node.inputs), *node.controls)
    return [nodes[number] for number in sorter.static_order()]
