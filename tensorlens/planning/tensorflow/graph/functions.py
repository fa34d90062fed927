"""A graph in the order in which it runs, with the functions that it calls.

TensorFlow leaves out of a function, and of a loop's values, what nobody reads: a gradient of a mask
that nobody trains, say, and all that the forward loop would keep for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tensorlens.planning.tensorflow.graph.nodes import LOOPS, Graph, Node, first_ready

_NONE = -1, 0
"""Input or result that nobody needs."""
_CALLED = {
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
}
"""Operation to its attributes that name functions, but for loops."""

Functions = Mapping[str, Graph]


def linked(graph: Graph, functions: Functions, *, as_written: bool = False) -> Graph:
    """Return a step's graph, with the functions that it calls.

    Args:
        graph: of the step.
        functions: all that it may call, by name.
        as_written: whether all operations run, in the order of the program.
    """
    if as_written:
        return replace(graph, nodes=[_with_calls(each, functions) for each in graph.nodes])
    return _live(graph, functions, range(len(graph.results)))


def _live(graph: Graph, functions: Functions, wanted: Collection[int], scope: str = "") -> Graph:
    """Return the part of a graph that is needed.

    Args:
        graph: which one.
        functions: all that it may call.
        wanted: places of results.
        scope: put before the names of its operations.
    """
    results = [each if place in wanted else _NONE for place, each in enumerate(graph.results)]
    needed = set(results)
    nodes: list[Node] = []
    for node in reversed(first_ready(graph.nodes)):
        slots = {slot for slot in range(len(node.outputs)) if (node.number, slot) in needed}
        acts = not node.outputs or node.op in LOOPS or node.op in _CALLED
        if not slots and not acts and node.number not in graph.arguments:
            continue
        node = replace(node, name=scope + node.name)
        node = _loop(node, functions, slots) if node.op in LOOPS else _with_calls(node, functions)
        needed.update(node.inputs)
        nodes.append(node)
    return Graph(nodes[::-1], graph.arguments, results)


def _with_calls(node: Node, functions: Functions) -> Node:
    if node.op in LOOPS:
        return _loop(node, functions, range(len(node.outputs)))
    called = [functions[node.attrs[name]] for name in _CALLED.get(node.op, ())]
    if not called:
        return node
    scope = f"{node.name}/"
    calls = [_live(each, functions, range(len(each.results)), scope) for each in called]
    return replace(node, calls=calls)


def _loop(node: Node, functions: Functions, slots: Collection[int]) -> Node:
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
