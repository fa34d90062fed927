"""Operations whose result is in memory that is there already.

An alias hands on the buffer of its input, whole or a part of it. A kernel that forwards writes its
result into the buffer of an input that nobody else will read (``OpKernelContext::forward_input``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tensorlens.planning.tensorflow.execution.live_values import Value
from tensorlens.planning.tensorflow.graph.nodes import ITEM_SIZES, GraphNode

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

_ALIGNMENT = 64
"""Bytes at whose multiples a tensor has to begin (``EIGEN_MAX_ALIGN_BYTES``)."""


_SOURCES = {"Split": 1, "SplitV": 0, "Unpack": 0, "Slice": 0, "StridedSlice": 0}
"""Operation whose results may be rows of an input, to the place of that input."""


def rows_of(node: GraphNode, values: Sequence[Value]) -> Value | None:
    """Return the input that all results are rows of, in its own memory; None where they are not.

    Rows along the first axis are shared where each begins aligned (``IsInnerDimsSizeAligned`` and
    ``IsDim0SliceAligned`` of ``core/framework/tensor.h``).
    """
    source = values[_SOURCES[node.op]] if node.op in _SOURCES else None
    if source is None or not source.shape or node.attrs.get("axis"):
        return None
    inner = source.shape[1:]
    if prod(inner) * ITEM_SIZES.get(node.outputs[0].dtype, 0) % _ALIGNMENT:
        return None
    shapes = [output.shape for output in node.outputs]
    # an index in the first axis alone may take the place of a range
    are_rows = node.attrs.get("shrink_axis_mask", 0) in (0, 1)
    are_rows = are_rows and all(each and each in (inner, (each[0], *inner)) for each in shapes)
    return source if are_rows else None
