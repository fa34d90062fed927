"""Operations whose result is in memory that is there already.

An alias hands on the buffer of its input, whole or a part of it. A kernel that forwards writes its
result into the buffer of an input that nobody else will read (``OpKernelContext::forward_input``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tensorlens.planning.tensorflow.execution.live_values import Value
from tensorlens.planning.tensorflow.graph.nodes import ITEM_SIZES, Node, Shape

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
"""Operation to the inputs whose buffer it can take, in the order in which it tries them."""

FORWARDS_SECOND: Mapping[str, Sequence[int]] = dict.fromkeys(
    ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), (0,)
)
"""The same for the second result: the gradient of the logits is written over them."""

_ALIGNMENT = 64
"""Bytes at whose multiples a tensor has to begin (``EIGEN_MAX_ALIGN_BYTES``)."""


def is_alias(node: Node, values: Sequence[Value]) -> bool:
    """Return whether a kernel that computes has nothing to compute here."""
    if not values or len(node.outputs) != 1 or values[0].held is None:
        return False
    output = node.outputs[0]
    if node.op == "Cast":
        return node.attrs.get("SrcT") == node.attrs.get("DstT")
    made, given = output.shape, values[0].shape
    if made is None or given is None:
        return False
    if node.op in ("Sum", "Mean", "Max", "Min", "Prod"):
        return prod(made) == prod(given)
    if node.op == "Transpose":
        return _keeps_order(given, values[1].numbers)
    if node.op == "ConcatV2":
        return made == given and len(node.inputs) == 2
    return node.op in ("Tile", "BroadcastTo", "Slice") and made == given


def _keeps_order(given: Shape, order: Sequence[int] | None) -> bool:
    """Tell whether only extents of 1 change places.

    ``NonSingletonDimensionsAlign`` in ``core/kernels/transpose_op.cc``.
    """
    if order is None or len(order) != len(given):
        return False
    moved = [place for place in order if given[place] != 1]
    return moved == sorted(moved)


def viewed(node: Node, values: Sequence[Value]) -> Value | None:
    """Return the input that all results are rows of, in its own memory; None where they are not.

    Rows along the first axis are shared where each begins aligned (``IsInnerDimsSizeAligned`` and
    ``IsDim0SliceAligned`` of ``core/framework/tensor.h``).
    """
    rule = _VIEWS.get(node.op)
    made = [output.shape for output in node.outputs if output.shape is not None]
    if rule is None or not made or len(made) < len(node.outputs):
        return None
    source = rule(node, values)
    if source is None or not source.shape:
        return None
    inner = source.shape[1:]
    if prod(inner) * ITEM_SIZES.get(node.outputs[0].dtype, 0) % _ALIGNMENT:
        return None
    return source if all(shape in (inner, (*shape[:1], *inner)) for shape in made) else None


def _of_split(node: Node, values: Sequence[Value]) -> Value | None:
    return values[1] if values[0].number == 0 else None


def _of_split_in_parts(node: Node, values: Sequence[Value]) -> Value | None:
    return values[0] if values[2].number == 0 else None


def _of_unpack(node: Node, values: Sequence[Value]) -> Value | None:
    return values[0] if node.attrs.get("axis", 0) == 0 else None


def _of_slice(node: Node, values: Sequence[Value]) -> Value | None:
    return values[0]


def _of_strided_slice(node: Node, values: Sequence[Value]) -> Value | None:
    strides = values[3].numbers
    # in the first axis alone an index may take the place of a range
    is_of_rows = node.attrs.get("shrink_axis_mask", 0) in (0, 1)
    is_of_rows = is_of_rows and not node.attrs.get("new_axis_mask", 0)
    return values[0] if is_of_rows and strides is not None and set(strides) == {1} else None


_VIEWS: Mapping[str, Callable[[Node, Sequence[Value]], Value | None]] = {
    "Split": _of_split,
    "SplitV": _of_split_in_parts,
    "Unpack": _of_unpack,
    "Slice": _of_slice,
    "StridedSlice": _of_strided_slice,
}
