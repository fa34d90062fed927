"""Shapes and counts that only a run tells: what a list in a loop gives back, how often it runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from tensorlens.planning.tensorflow.execution.buffer_forwarding import FORWARDS
from tensorlens.planning.tensorflow.execution.live_values import Value
from tensorlens.planning.tensorflow.graph.nodes import Node, Shape

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


Rule = Callable[[Node, Sequence[Shape | None], Sequence[Value]], Shape | None]


def inferred(node: Node, values: Sequence[Value]) -> Shape | None:
    """Return the shape of the first result from those of the inputs; None where no rule is."""
    shapes = [value.shape for value in values]
    rule = _RULES.get(node.op)
    if rule is not None:
        return rule(node, shapes, values)
    if node.op in FORWARDS:
        return broadcast([shape for shape in shapes if shape is not None])
    return None


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that all of them are stretched to."""
    if not shapes:
        return None
    columns = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in columns)[::-1]


def _product(node: Node, shapes: Sequence[Shape | None], values: Sequence[Value]) -> Shape | None:
    one, other = shapes[0], shapes[1]
    if one is None or other is None or len(one) < 2 or len(other) < 2:
        return None
    rows = one[-1] if node.attrs.get("transpose_a") or node.attrs.get("adj_x") else one[-2]
    columns = other[-2] if node.attrs.get("transpose_b") or node.attrs.get("adj_y") else other[-1]
    return (*(broadcast([one[:-2], other[:-2]]) or ()), rows, columns)


def _joined(node: Node, shapes: Sequence[Shape | None], values: Sequence[Value]) -> Shape | None:
    *parts, _ = shapes
    axis = values[-1].number
    if axis is None:
        return None
    # where one was guessed without all that it is made of, there may be no such axis
    known = [shape for shape in parts if shape is not None and -len(shape) <= axis < len(shape)]
    if len(known) < len(parts):
        return None
    sizes = list(known[0])
    sizes[axis] = sum(shape[axis] for shape in known)
    return tuple(sizes)


def _last(node: Node, shapes: Sequence[Shape | None], values: Sequence[Value]) -> Shape | None:
    shape = shapes[0]
    return None if not shape else shape[-1:]


def _same(node: Node, shapes: Sequence[Shape | None], values: Sequence[Value]) -> Shape | None:
    return shapes[0]


def _split(node: Node, shapes: Sequence[Shape | None], values: Sequence[Value]) -> Shape | None:
    axis, shape = values[0].number, shapes[1]
    if axis is None or shape is None:
        return None
    sizes = list(shape)
    sizes[axis] //= max(len(node.outputs), 1)
    return tuple(sizes)


def _reduced(node: Node, shapes: Sequence[Shape | None], values: Sequence[Value]) -> Shape | None:
    shape = shapes[0]
    axes = values[1].numbers if values[1].number is None else (values[1].number,)
    if shape is None or axes is None or not all(-len(shape) <= each < len(shape) for each in axes):
        return None
    gone = {each % len(shape) for each in axes}
    if node.attrs.get("keep_dims"):
        return tuple(1 if place in gone else size for place, size in enumerate(shape))
    return tuple(size for place, size in enumerate(shape) if place not in gone)


def _sliced(node: Node, shapes: Sequence[Shape | None], values: Sequence[Value]) -> Shape | None:
    shape, masks = shapes[0], node.attrs
    begins, ends, strides = (value.numbers for value in values[1:])
    if shape is None or begins is None or ends is None or strides is None:
        return None
    if masks.get("ellipsis_mask") or masks.get("new_axis_mask") or len(begins) > len(shape):
        return None
    sizes: list[int] = []
    for place, (begin, end, stride) in enumerate(zip(begins, ends, strides, strict=True)):
        from_the_start, to_the_end, is_index = (
            masks.get(f"{mask}_mask", 0) >> place & 1 for mask in ("begin", "end", "shrink_axis")
        )
        part = slice(None if from_the_start else begin, None if to_the_end else end, stride)
        if not is_index:
            sizes.append(len(range(*part.indices(shape[place]))))
    return (*sizes, *shape[len(begins) :])


def _told(node: Node, shapes: Sequence[Shape | None], values: Sequence[Value]) -> Shape | None:
    numbers = values[0].numbers
    return None if numbers is None else tuple(numbers)


_LIKE_THE_FIRST = (
    *("ZerosLike", "OnesLike", "Cast", "BiasAdd", "Cumsum", "Cumprod", "BroadcastGradientArgs"),
    *("MatrixBandPart", "MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3"),
    *("TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub"),
    *("IsFinite", "IsInf", "IsNan"),
)

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "_FusedMatMul"), _product),
    "ConcatV2": _joined,
    "BiasAddGrad": _last,
    "Split": _split,
    "StridedSlice": _sliced,
    "StridedSliceGrad": _told,
    **dict.fromkeys(("All", "Any", "Sum", "Mean", "Max", "Min", "Prod"), _reduced),
    **dict.fromkeys(_LIKE_THE_FIRST, _same),
}
