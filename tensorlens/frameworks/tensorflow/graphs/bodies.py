"""The body of a function of TensorFlow's: its nodes, and the frames that made each.

It is read from what the runtime keeps under the function's name, or from a graph that is alive,
and keeps neither alive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensorlens.frameworks.tensorflow.graphs.frames import LazyFrames, of_operations

_GRADIENT_OF = re.compile(r"(.+)_grad_\d+$")


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a body."""

    name: str
    op: str
    """The type of its operation."""
    inputs: tuple[str, ...]
    """The names of the nodes and arguments whose values it takes."""
    calls: tuple[tuple[str, str], ...]
    """The functions that it calls: the name of the attribute, and the function's."""
    place: int
    """How many nodes were made before it."""


@dataclass(frozen=True)
class Body:
    """One function's nodes."""

    name: str
    nodes: Mapping[str, Node]
    frames: LazyFrames
    """Give the frames that made a node, innermost first."""
    backward_of: str | None = None
    """Of a function that computes gradients: the function whose gradients these are."""
    compiled: bool = False
    """Whether XLA compiles it."""

    @cached_property
    def scopes(self) -> Mapping[str, Sequence[Node]]:
        """Scope to the nodes right in it."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            found.setdefault(node.name.rpartition("/")[0], []).append(node)
        return found


def from_definition(definition: Any, frames: LazyFrames) -> Body:
    """Return the body of a ``FunctionDef``."""
    nodes = {
        node.name: Node(node.name, node.op, _inputs(node.input), _calls(node.attr), place)
        for place, node in enumerate(definition.node_def)
    }
    attributes = definition.attr
    name = definition.signature.name
    return Body(
        name,
        nodes,
        frames,
        _backward_of(name, attributes),
        "_XlaMustCompile" in attributes and attributes["_XlaMustCompile"].b,
    )


def from_graph(graph: Any) -> Body:
    """Return the body of a live ``FuncGraph``, as it is now."""
    nodes, traces = {}, {}
    for place, op in enumerate(graph.get_operations()):
        inputs = tuple(each.op.name for each in op.inputs)
        nodes[op.name] = Node(op.name, op.type, inputs, calls_of(op), place)
        traces[op.name] = op.traceback
    name = str(getattr(graph, "name", ""))
    return Body(name, nodes, LazyFrames(lambda: of_operations(traces)), _backward_of(name, {}))


def calls_of(op: Any) -> tuple[tuple[str, str], ...]:
    """Return the functions that an operation of a live graph calls, as :class:`Node` has them."""
    return _calls(op.node_def.attr) if _may_call(op.type) else ()


def _backward_of(name: str, attributes: Any) -> str | None:
    if "forward_function_name" in attributes:
        return bytes(attributes["forward_function_name"].s).decode(errors="replace")
    found = _GRADIENT_OF.match(name)
    return found[1] if found else None


def _inputs(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.partition(":")[0] for name in names if not name.startswith("^"))


def _may_call(op: str) -> bool:
    return op.endswith(("Call", "While", "If", "Case", "For")) or "Dataset" in op


def _calls(attributes: Any) -> tuple[tuple[str, str], ...]:
    found = []
    for key, value in attributes.items():
        kind = value.WhichOneof("value")
        if kind == "func":
            found.append((key, value.func.name))
        elif kind == "list" and value.list.func:
            found += [(key, each.name) for each in value.list.func]
    return tuple((key, name) for key, name in found if name)
