"""Live values of a running graph: buffers, lists of tensors, and their references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorlens.planning.tensorflow.graph.nodes import Shape


class Counted:
    """Something that goes when nobody refers to it any more."""

    __slots__ = ("refs",)

    def __init__(self) -> None:
        self.refs = 0

    def gone(self, free: Callable[[Buffer], None]) -> None:
        """Let go of what it refers to."""


class Buffer(Counted):
    """Bytes of one tensor, or of several that share them."""

    __slots__ = ("nbytes", "row")

    def __init__(self, nbytes: int, row: int) -> None:
        super().__init__()
        self.nbytes, self.row = nbytes, row

    def gone(self, free: Callable[[Buffer], None]) -> None:
        """Give the bytes back."""
        free(self)


class Items(Counted):
    """A list of tensors, the value of a variant."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[Value]) -> None:
        super().__init__()
        self.values = list(values)
        for value in self.values:
            keep(value)

    def gone(self, free: Callable[[Buffer], None]) -> None:
        """Let go of the tensors."""
        for value in self.values:
            drop(value, free)
        self.values.clear()


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
        held: Counted | None = None,
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
    if held is not None:
        held.refs -= 1
        if not held.refs:
            held.gone(free)
