"""A graph as plain data: operations, what they read, and the shapes of what they make."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """Output of an operation: one tensor."""

    dtype: str
    shape: Shape | None
    """None where the graph does not tell."""

    @property
    def nbytes(self) -> int | None:
        """Bytes of the tensor; None where the shape is not known."""
        return None if self.shape is None else prod(self.shape) * ITEM_SIZES.get(self.dtype, 0)


@dataclass(slots=True, eq=False)
class Node:
    """One operation."""

    number: int
    name: str
    op: str
    inputs: Sequence[tuple[int, int]] = ()
    """Number of the operation and of its output, for each input; -1 where nobody needs it."""
    controls: Sequence[int] = ()
    """Numbers of the operations that come before this one without giving it anything."""
    outputs: Sequence[Output] = ()
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

    nodes: Sequence[Node]
    arguments: Sequence[int] = ()
    """Numbers of the operations that stand for what it is given."""
    results: Sequence[tuple[int, int]] = ()
    """Number of an operation and of its output, for each result; -1 where nobody needs it."""


def first_ready(nodes: Sequence[Node]) -> list[Node]:
    """Return the operations in a topological order: those that are ready first come first."""
    waiting = [len(node.inputs) + len(node.controls) for node in nodes]
    consumers: list[list[Node]] = [[] for _ in nodes]
    for node in nodes:
        for source in (*(number for number, _ in node.inputs), *node.controls):
            consumers[source].append(node)
    ready = deque(node for node in nodes if not waiting[node.number])
    ordered: list[Node] = []
    while ready:
        node = ready.popleft()
        ordered.append(node)
        for consumer in consumers[node.number]:
            waiting[consumer.number] -= 1
            if not waiting[consumer.number]:
                ready.append(consumer)
    return ordered
