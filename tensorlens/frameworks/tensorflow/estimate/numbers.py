"""Scalars that decide how often a loop runs, computed where they are known."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_TWO: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("Add", "AddV2"), operator.add),
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Maximum": max,
    "Minimum": min,
    "Less": operator.lt,
    "LessEqual": operator.le,
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "LogicalAnd": lambda one, other: one and other,
    "LogicalOr": lambda one, other: one or other,
}
_SAME = frozenset(("Identity", "Enter", "Exit", "NextIteration", "LoopCond", "Cast", "Reshape"))


def computed(op: str, numbers: Sequence[Any]) -> Any:
    """Return the scalar that an operation makes of scalars; None where it is not known."""
    if op in _TWO and len(numbers) == 2 and None not in numbers:
        try:
            return _TWO[op](*numbers)
        except (ArithmeticError, TypeError):
            return None
    if op in _SAME and numbers:
        return numbers[0]
    if op == "LogicalNot" and numbers and numbers[0] is not None:
        return not numbers[0]
    return None
