"""Live values of a running graph: buffers, lists of tensors, and their references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorlens.planning.tensorflow.graph.nodes import Shape


@dataclass(slots=True, eq=False)
class Buffer:
    """Bytes of one tensor, or of several that share them; gone when nobody refers to it."""

    nbytes: int
    row: int
    refs: int = 0


@dataclass(slots=True, eq=False)
class Items:
    """A list of tensors, the value of a variant; it lets go of them when nobody refers to it."""

    values: list[Value]
    refs: int = 0

    def __post_init__(self) -> None:
        self.values = [keep(value) for value in self.values]


class Value:
    """Result of an operation: where its bytes are, and its number if that is known.

    Args:
        held: where its bytes are.
        shape: None where it is not known.
        number: of a scalar, or a list of a few.
        variable: whose handle it is.
        part: its own bytes, where ``held`` has more than these; None: all of them are its own.
    """

    __slots__ = ("_part", "held", "number", "shape", "variable")

    def __init__(
        self,
        held: Buffer | Items | None = None,
        shape: Shape | None = None,
        number: Any = None,
        variable: str | None = None,
        *,
        part: int | None = None,
    ) -> None:
        self.held, self.shape, self.number, self.variable = held, shape, number, variable
        self._part = part

    @property
    def nbytes(self) -> int:
        """Its bytes; 0 without a buffer."""
        if not isinstance(self.held, Buffer):
            return 0
        return self.held.nbytes if self._part is None else self._part

    def shaped(self, shape: Shape | None) -> Value:
        """Return the same, as another operation hands it on."""
        return Value(self.held, shape or self.shape, self.number, self.variable, part=self._part)


NOTHING = Value()


def keep(value: Value) -> Value:
    """Refer to it once more."""
    if value.held is not None:
        value.held.refs += 1
    return value


def drop(value: Value, free: Callable[[Buffer], None]) -> None:
    """Refer to it once less."""
    held = value.held
    if held is None:
        return
    held.refs -= 1
    if held.refs:
        return
    if isinstance(held, Buffer):
        free(held)
        return
    for each in held.values:
        drop(each, free)
    held.values.clear()
