"""Operations whose result is in memory that is there already.

An alias hands on the buffer of its input. A kernel that forwards writes its result into the buffer
of an input that nobody else will read (``OpKernelContext::forward_input``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorlens.frameworks.tensorflow.estimate.held import Value
from tensorlens.frameworks.tensorflow.estimate.nodes import Node

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
    *("Softmax", "LogSoftmax", "BiasAdd", "ZerosLike", "OnesLike", "ClipByValue", "Cumsum"),
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
    "Select": (1, 2),
    "StridedSliceAssign": (0,),
    "TensorScatterUpdate": (0,),
    "TensorScatterAdd": (0,),
    "InplaceUpdate": (0,),
}
"""Operation to the inputs whose buffer it can take, in the order in which it tries them."""


def is_alias(node: Node, values: Sequence[Value]) -> bool:
    """Return whether a kernel that computes has nothing to compute here."""
    if not values or len(node.outputs) != 1 or values[0].held is None:
        return False
    output = node.outputs[0]
    if node.op == "Cast":
        return node.attrs.get("SrcT") == node.attrs.get("DstT")
    if node.op in ("Sum", "Mean", "Max", "Min", "Prod", "Tile", "BroadcastTo", "Slice", "ConcatV2"):
        return output.shape is not None and output.shape == values[0].shape and _moves_nothing(node)
    return False


def _moves_nothing(node: Node) -> bool:
    if node.op == "ConcatV2":
        return len(node.inputs) == 2
    return True
