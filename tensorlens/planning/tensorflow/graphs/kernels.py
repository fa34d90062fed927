"""Kernels whose results are no new tensors: numbers, variables, lists of tensors.

Lists follow ``core/kernels/list_kernels.cc`` of TensorFlow 2.21: a pushed or set tensor shares its
buffer with the list, stacking copies, and a list with one reference is changed in place. Other
operations that return a list are reported as unknown.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorlens.planning.tensorflow.graphs.graph import GraphNode
from tensorlens.planning.tensorflow.graphs.live_values import (
    NOTHING,
    Buffer,
    Items,
    Value,
    drop,
    keep,
)

if TYPE_CHECKING:
    from tensorlens.planning.tensorflow.graphs.graph_run import GraphRunner

_BINARY_OPS: Mapping[str, Callable[[Any, Any], Any]] = {
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
_IDENTITY_OPS = frozenset(("Cast", "Reshape"))


def special_outputs(
    runner: GraphRunner, node: GraphNode, values: Sequence[Value]
) -> Sequence[Value] | None:
    """Return the results of a kernel that makes no new tensors; None for any other kernel."""
    match node.op:
        case "Const":
            return [Value(None, node.outputs[0].shape, node.value)]
        case "Shape" | "ShapeN":
            return _shapes(values)
        case "VariableShape":
            return _shapes([runner.variables.get(values[0].variable or "", NOTHING)])
        case "ReadVariableOp":
            return [runner.variables.get(values[0].variable or "", NOTHING).shaped(None)]
        case "BroadcastGradientArgs" | "TensorListElementShape":
            # a few numbers on the host, which are not counted
            return [NOTHING for _ in node.outputs]
        case "AssignVariableOp":
            handle, value = values
            is_alone = isinstance(value.held, Buffer) and value.held.refs == 1
            runner.assign(handle.variable or "", value.shaped(None) if is_alone else None, value)
            return []
        case "AssignAddVariableOp" | "AssignSubVariableOp":
            old = runner.variables.get(values[0].variable or "")
            if old is not None and old.held is not None and old.held.refs > 1:
                # readers keep the old value
                runner.assign(values[0].variable or "", None, old)
            return []
        case "ZerosLike" if isinstance(values[0].held, Items):
            return [Value(Items([_copied(runner, each) for each in _items(values[0])]))]
        case "AddN" if any(isinstance(each.held, Items) for each in values):
            together = zip(*map(_items, values), strict=False)
            return [Value(Items([_sum(runner, each) for each in together]))]
    return _list_outputs(runner, node, values) if "TensorList" in node.op else None


def _list_outputs(
    runner: GraphRunner, node: GraphNode, values: Sequence[Value]
) -> Sequence[Value] | None:
    match node.op:
        case "EmptyTensorList":
            return [Value(Items([]))]
        case "TensorListReserve":
            number = values[1].number if len(values) > 1 else node.value
            return [Value(Items([NOTHING] * int(number or 0)))]
        case "TensorListPushBack":
            items = _writable_list(values[0])
            items.values.append(keep(values[1]))
            return [Value(items)]
        case "TensorListPopBack":
            items = _writable_list(values[0])
            popped = items.values.pop() if items.values else NOTHING
            if popped.held is not None:
                popped.held.refs -= 1
            return [Value(items), popped]
        case "TensorListSetItem":
            items, place = _writable_list(values[0]), values[1].number
            if place is None:
                runner.unknown(node)
                return [Value(items)]
            items.values += [NOTHING] * (place + 1 - len(items.values))
            drop(items.values[place], runner.free)
            items.values[place] = keep(values[2])
            return [Value(items)]
        case "TensorListGetItem":
            return [_item(runner, node, values)]
        case "TensorListFromTensor":
            first, *inner = values[0].shape or (0,)
            dtype = str(node.attrs.get("element_dtype", "float32"))
            return [Value(Items([runner.new(tuple(inner), dtype) for _ in range(first)]))]
        case "TensorListStack":
            found, output = _items(values[0]), node.outputs[0]
            element = next((each.shape for each in found if each.shape is not None), ())
            return [runner.new(output.shape or (len(found), *element), output.dtype)]
        case "TensorListLength":
            return [Value(None, (), len(_items(values[0])))]
    if any(output.dtype == "variant" for output in node.outputs):
        runner.unknown(node)
        return [Value(Items([])) for _ in node.outputs]
    return None


def _item(runner: GraphRunner, node: GraphNode, values: Sequence[Value]) -> Value:
    items = _items(values[0])
    place: int | None = values[1].number
    if place is not None and place < len(items) and items[place].held is not None:
        return items[place]
    shape = node.outputs[0].shape
    if shape is None:
        shape = next((each.shape for each in items if each.shape is not None), None)
    # an element that was never written reads as zeros
    return NOTHING if shape is None else runner.new(shape, node.outputs[0].dtype)


def _writable_list(value: Value) -> Items:
    """Return the list to write into: itself if it has one reference, else a copy."""
    items = value.held
    if not isinstance(items, Items):
        return Items([])
    return items if items.refs == 1 else Items(items.values)


def _items(value: Value) -> Sequence[Value]:
    return value.held.values if isinstance(value.held, Items) else ()


def _copied(runner: GraphRunner, value: Value) -> Value:
    if value.held is None:
        return NOTHING
    return Value(runner.allocate(value.nbytes), value.shape)


def _sum(runner: GraphRunner, values: Sequence[Value]) -> Value:
    known = [value for value in values if value.held is not None]
    return _copied(runner, known[0]) if len(known) > 1 else (known or [NOTHING])[0]


def _shapes(values: Sequence[Value]) -> Sequence[Value]:
    return [Value(None, None, None if each.shape is None else list(each.shape)) for each in values]


def folded_number(op: str, values: Sequence[Value]) -> Any:
    """Return the result of an operation on known numbers; None if unknown."""
    numbers = [value.number for value in values]
    if not numbers or numbers[0] is None:
        return None
    if op in _IDENTITY_OPS:
        return numbers[0]
    if op == "LogicalNot":
        return not numbers[0]
    are_two = len(numbers) == 2 and all(isinstance(each, int) for each in numbers)
    if op not in _BINARY_OPS or not are_two:
        return None
    try:
        return _BINARY_OPS[op](*numbers)
    except ArithmeticError:
        return None
