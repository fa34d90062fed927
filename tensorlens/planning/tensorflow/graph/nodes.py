"""A graph as plain data: operations, what they read, and the shapes of what they make."""

from __future__ import annotations

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
    """Number of the operation and of its output, for each input."""
    controls: Sequence[int] = ()
    """Numbers of the operations that come before this one without giving it anything."""
    outputs: Sequence[Output] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """Plain values only: integers, texts, booleans, lists of them."""
    value: Any = None
    """A constant's number, where it is a scalar of integers or truth."""
    values: Sequence[int] | None = None
    """A constant's numbers, where there are a few in a row."""
    consumers: list[tuple[int, int, int]] = field(default_factory=list)
    """Output, operation and input that reads it; output -1 where it only comes first."""


ENTERS = ("Enter", "RefEnter")
"""Operations that hand a value into a loop."""
BACK = ("NextIteration", "RefNextIteration")
"""Operations that end a pass through a loop, for which nobody waits."""


def connect(nodes: Sequence[Node]) -> None:
    """Tell every operation who comes after it."""
    for node in nodes:
        for place, (source, slot) in enumerate(node.inputs):
            nodes[source].consumers.append((slot, node.number, place))
        for source in node.controls:
            nodes[source].consumers.append((-1, node.number, -1))


def starts_of(nodes: Sequence[Node]) -> list[Node]:
    """Return the operations that wait for no other."""
    return [node for node in nodes if not node.inputs and not node.controls]
