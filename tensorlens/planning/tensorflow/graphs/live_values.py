"""Values of a running graph, their buffers, and which kernels reuse the buffer of an input.

An alias shares the buffer of its input, or a part of it. A forwarding kernel writes its result into
the buffer of an input that nobody else will read (``OpKernelContext::forward_input``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorlens.frameworks.tensorflow.sizes import nbytes
from tensorlens.planning.tensorflow.graphs.graph import GraphNode, Shape


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
