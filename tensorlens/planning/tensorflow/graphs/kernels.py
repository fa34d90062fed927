"""Values of a running graph, and the kernels whose results are not simply new tensors.

An alias shares the buffer of its input, or a part of it. A forwarding kernel writes its result into
the buffer of an input that nobody else will read (``OpKernelContext::forward_input``). Others have
results that are numbers, variables or lists of tensors.

Lists follow ``core/kernels/list_kernels.cc`` of TensorFlow 2.21: a pushed or set tensor shares its
buffer with the list, stacking copies, and a list with one reference is changed in place. Other
operations that return a list are reported as unknown.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorlens.frameworks.tensorflow.sizes import nbytes
from tensorlens.planning.tensorflow.graphs.graph import GraphNode, Shape

if TYPE_CHECKING:
    from tensorlens.planning.tensorflow.graphs.graph_run import GraphRunner


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory of one tensor, or of several that share it; freed with its last reference."""

    nbytes: int
    row: int
    refs: int = 0


@dataclass(slots=True, eq=False)
class Items:
    """A list of tensors, as a variant has it; its last reference drops the tensors."""

    values: list[Value]
    refs: int = 0

    def __post_init__(self) -> None:
        self.values = [keep(value) for value in self.values]


@dataclass(slots=True, eq=False)
class Value:
    """Result of an operation: its memory, and its number if known."""

    held: Buffer | Items | None = None
    shape: Shape | None = None
    """None if unknown."""
    number: Any = None
    """Value of a scalar, or a list of a few; None if unknown."""
    variable: str | None = None
    """The variable whose handle it is."""
    part: int | None = field(default=None, kw_only=True)
    """Bytes of this tensor if its buffer is larger; None: the whole buffer."""

    @property
    def nbytes(self) -> int:
        """Its bytes; 0 without a buffer."""
        if not isinstance(self.held, Buffer):
            return 0
        return self.held.nbytes if self.part is None else self.part

    def shaped(self, shape: Shape | None) -> Value:
        """Return the value with another shape, sharing its memory."""
        return Value(self.held, shape or self.shape, self.number, self.variable, part=self.part)


NOTHING = Value()


def keep(value: Value) -> Value:
    """Add a reference."""
    if value.held is not None:
        value.held.refs += 1
    return value


def drop(value: Value, free: Callable[[Buffer], None]) -> None:
    """Remove a reference; the last one frees the memory."""
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


ALIASES = frozenset(
    (
        *("Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient"),
        *("PreventGradient", "Enter", "RefEnter", "Exit", "RefExit", "NextIteration"),
        *("LoopCond", "Snapshot", "EnsureShape", "Bitcast", "PlaceholderWithDefault"),
        *("CheckNumerics", "_Retval", "ReadVariableXlaSplitND"),
    )
)

_UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Digamma"),
    *("Erf", "Erfc", "Erfinv", "Exp", "Expm1", "Floor", "Inv", "Invert", "Lgamma", "Log", "Log1p"),
    *("LogicalNot", "Neg", "Ndtri", "Reciprocal", "Rint", "Round", "Rsqrt", "Sigmoid", "Sign"),
    *("Sin", "Sinh", "Sqrt", "Square", "Tan", "Tanh", "_UnaryOpsComposition"),
    *("Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign"),
    *("Softmax", "LogSoftmax", "BiasAdd", "ZerosLike", "OnesLike", "ClipByValue"),
    *("MatrixBandPart", "MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3"),
    "FakeQuantWithMinMaxArgs",
)
_BINARY = (
    *("Add", "AddV2", "Sub", "Mul", "MulNoNan", "Div", "DivNoNan", "RealDiv", "FloorDiv"),
    *("FloorMod", "Mod", "TruncateDiv", "TruncateMod", "Maximum", "Minimum", "Pow", "Atan2"),
    *("SquaredDifference", "Xdivy", "Xlogy", "Xlog1py", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
    *("LogicalAnd", "LogicalOr", "LeftShift", "RightShift", "NextAfter", "Zeta", "Igamma"),
    *("SigmoidGrad", "TanhGrad", "InvGrad", "ReciprocalGrad", "RsqrtGrad", "SqrtGrad"),
    *("ReluGrad", "Relu6Grad", "LeakyReluGrad", "EluGrad", "SeluGrad", "SoftplusGrad"),
    *("SoftsignGrad",),
)

FORWARDS: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(_UNARY, (0,)),
    **dict.fromkeys(_BINARY, (0, 1)),
    "AddN": tuple(range(64)),
    **dict.fromkeys(("Select", "SelectV2"), (1, 2)),
    "StridedSliceAssign": (0,),
    "InplaceUpdate": (0,),
}
"""Operation to the inputs whose buffer it can reuse, in the order in which it tries them."""

_ALIGNMENT = 64
"""Alignment of tensors in bytes (``EIGEN_MAX_ALIGN_BYTES``)."""


_SOURCES = {"Split": 1, "SplitV": 0, "Unpack": 0, "Slice": 0, "StridedSlice": 0}
"""Operations whose results may be rows of an input, to the index of that input."""


def rows_of(node: GraphNode, values: Sequence[Value]) -> Value | None:
    """Return the input whose memory all results share as rows; None if they are copies.

    Rows along the first axis are shared if each begins aligned (``IsInnerDimsSizeAligned`` and
    ``IsDim0SliceAligned`` of ``core/framework/tensor.h``).
    """
    source = values[_SOURCES[node.op]] if node.op in _SOURCES else None
    if source is None or not source.shape or node.attrs.get("axis"):
        return None
    inner = source.shape[1:]
    if nbytes(inner, node.outputs[0].dtype) % _ALIGNMENT:
        return None
    shapes = [output.shape for output in node.outputs]
    # the first axis may have an index in place of a range
    are_rows = node.attrs.get("shrink_axis_mask", 0) in (0, 1)
    are_rows = are_rows and all(each and each in (inner, (each[0], *inner)) for each in shapes)
    return source if are_rows else None


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
    """Return the results of a kernel of numbers, variables or lists; None for any other kernel."""
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
