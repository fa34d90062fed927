"""Numbers and shapes that only a run tells: how often a loop runs, what a list in it gives back."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tensorlens.planning.tensorflow.execution.live_values import Value
from tensorlens.planning.tensorflow.graph.nodes import Node, Output

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
_SAME = frozenset(("Cast", "Reshape"))


def computed(op: str, values: Sequence[Value]) -> Any:
    """Return the number that an operation makes of numbers; None where it is not known."""
    numbers = [value.number for value in values]
    if not numbers or numbers[0] is None:
        return None
    if op in _SAME:
        return numbers[0]
    if op == "LogicalNot":
        return not numbers[0]
    if op not in _TWO or len(numbers) != 2 or not all(isinstance(each, int) for each in numbers):
        return None
    try:
        return _TWO[op](*numbers)
    except ArithmeticError:
        return None


def with_shapes(node: Node, values: Sequence[Value]) -> Sequence[Output]:
    """Return an operation's results with the shapes that TensorFlow infers from its inputs."""
    with tf.Graph().as_default() as graph:
        inputs = [
            tf.compat.v1.placeholder(dtype, value.shape)
            if value.number is None
            else tf.constant(value.number, dtype)
            for dtype, value in zip(node.dtypes, values, strict=True)
        ]
        attrs = dict(node.definition.attr)
        try:
            made = graph.create_op(node.op, inputs, attrs=attrs).outputs
        except Exception:  # its shapes do not fit, where one before it was not known
            return node.outputs
    return [
        Output(each.dtype, tuple(one.shape) if one.shape.is_fully_defined() else each.shape)
        for each, one in zip(node.outputs, made, strict=True)
    ]
