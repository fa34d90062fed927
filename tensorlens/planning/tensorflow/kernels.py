"""Memory of operations on a device: their results, and their scratch while they run.

An alias hands on the buffer of its input, whole or a part of it. A kernel that forwards writes its
result into the buffer of an input that nobody else will read (``OpKernelContext::forward_input``).
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import tensorflow as tf

from tensorlens.planning.tensorflow.graph import GraphNode, NodeOutput, Shape, item_size
from tensorlens.planning.tensorflow.live_values import (
    LIST_ARITHMETIC,
    LIST_KERNELS,
    NOTHING,
    Buffer,
    Items,
    Value,
    drop,
    keep,
    nothing,
)
from tensorlens.planning.tensorflow.scratch import Scratch, ScratchOf
from tensorlens.planning.tensorflow.trace_writer import TraceWriter

_ALIASES = frozenset(
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

_FORWARDS: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(_UNARY, (0,)),
    **dict.fromkeys(_BINARY, (0, 1)),
    "AddN": tuple(range(64)),
    **dict.fromkeys(("Select", "SelectV2"), (1, 2)),
    "StridedSliceAssign": (0,),
    "InplaceUpdate": (0,),
}
"""Operation to the inputs whose buffer it can take, in the order in which it tries them."""

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


class Machine:
    """Runs kernels on one device, whose memory is only counted.

    Args:
        memory: takes note of every request.
        variables: handle to its value, referred to once by the variable.
        scratch: what kernels take besides their results.
        unknown: told an operation whose results have no shape, or a condition without a number.
        forwards: whether results are written into inputs that nobody else reads.
        overlap: iterations of a loop that run at the same time: what one of them gives back is
            there until so many more have begun.
    """

    def __init__(
        self,
        memory: TraceWriter,
        variables: dict[str, Value],
        scratch: ScratchOf,
        unknown: Callable[[GraphNode], None],
        forwards: bool = True,
        overlap: int = 0,
    ) -> None:
        self.memory = memory
        self.variables = variables
        self.unknown = unknown
        self._scratch = scratch
        self._forwards = forwards
        self._overlap = overlap
        self._iterations: deque[list[Buffer]] = deque()
        self._shaped: dict[Any, GraphNode] = {}
        """Operations with shapes that the graph does not tell."""
        self._place: GraphNode | None = None

    def run(
        self, node: GraphNode, values: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Buffer]]:
        """Return outputs, and what is given back at the end."""
        self._place = node
        needed = self._scratch(node, values)
        outputs = self._outputs(node, values)
        return outputs, [self._take_scratch(each) for each in needed]

    def free(self, buffer: Buffer) -> None:
        """Give a buffer's bytes back."""
        if buffer.row < 0:
            return
        if self._iterations:
            self._iterations[-1].append(buffer)
        else:
            self.memory.give(buffer.row, self._place)

    def begin_iteration(self) -> None:
        """Begin an iteration of a loop, and end the one that no longer runs beside it."""
        self._iterations.append([])
        if len(self._iterations) > self._overlap:
            self._give_back(self._iterations.popleft())

    def end_loop(self) -> None:
        """End all iterations."""
        while self._iterations:
            self._give_back(self._iterations.popleft())

    def _give_back(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            self.memory.give(buffer.row, self._place)

    def assign(self, name: str, new: Value, old: Value | None) -> None:
        """Let a variable have another value; the old one goes unless somebody still reads it."""
        self.variables[name] = new
        if old is not None:
            drop(old, self.free)
        if isinstance(new.held, Buffer) and new.held.row >= 0:
            before = None if old is None else old.held
            row = before.row if isinstance(before, Buffer) and before.refs > 0 else -1
            self.memory.assign(name, new.held.row, row, self._place)

    def allocate(self, nbytes: int, name: str | None = None) -> Buffer:
        """Return a new buffer, referred to by nobody."""
        row = self.memory.take(nbytes, self._place, name) if nbytes else -1
        return Buffer(nbytes, row)

    def new(self, shape: Shape, dtype: str) -> Value:
        """Return a new tensor."""
        return Value(self.allocate(prod(shape) * item_size(dtype)), shape)

    def _take_scratch(self, scratch: Scratch) -> Buffer:
        buffer = self.allocate(max(scratch.nbytes, scratch.most), scratch.name)
        if scratch.most >= 0 and buffer.row >= 0:
            self.memory.bound(buffer.row, scratch.least, scratch.nbytes, scratch.most)
        buffer.refs = 1
        return buffer

    def _outputs(self, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
        op = node.op
        special = _SPECIAL.get(op) or LIST_KERNELS.get(op)
        if op in LIST_ARITHMETIC and any(isinstance(each.held, Items) for each in values):
            special = LIST_ARITHMETIC[op]
        if special is not None:
            return special(self, node, values)
        if node.outputs and node.outputs[0].shape is None:
            node = self._with_shapes(node, values)
        if op in _ALIASES:
            return [
                value.shaped(output.shape)
                for value, output in zip(values, node.outputs, strict=False)
            ]
        whole = _rows_of(node, values)
        if whole is not None:
            return [Value(whole.held, output.shape, part=output.nbytes) for output in node.outputs]
        return self._computed(node, values)

    def _with_shapes(self, node: GraphNode, values: Sequence[Value]) -> GraphNode:
        """Return the operation with the shapes that it has this time, where they are known."""
        key = id(node), *((value.shape, str(value.number)) for value in values)
        known = self._shaped.get(key)
        if known is None:
            known = self._shaped[key] = replace(node, outputs=_inferred(node, values))
        return known

    def _computed(self, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
        number = _number(node.op, values)
        made: list[Value] = []
        for slot, output in enumerate(node.outputs):
            shape = output.shape
            if shape is None:
                self.unknown(node)
                shape = ()
            nbytes = prod(shape) * item_size(output.dtype)
            held: Buffer | None = None
            if slot == 0 and self._forwards:
                held = self._forwarded(_FORWARDS.get(node.op, ()), values, nbytes)
            if held is None:
                held = self.allocate(nbytes)
            made.append(Value(held, shape, number if slot == 0 else None, part=nbytes))
        return made

    def _forwarded(
        self, places: Sequence[int], values: Sequence[Value], nbytes: int
    ) -> Buffer | None:
        """Return the buffer of an input that nobody else reads, if the kernel can write into it."""
        for place in places:
            if place >= len(values):
                break
            held = values[place].held
            if isinstance(held, Buffer) and held.refs == 1 and nbytes == values[place].nbytes > 0:
                return held
        return None


_ALIGNMENT = 64
"""Bytes at whose multiples a tensor has to begin (``EIGEN_MAX_ALIGN_BYTES``)."""


_SOURCES = {"Split": 1, "SplitV": 0, "Unpack": 0, "Slice": 0, "StridedSlice": 0}
"""Operation whose results may be rows of an input, to the place of that input."""


def _rows_of(node: GraphNode, values: Sequence[Value]) -> Value | None:
    """Return the input that all results are rows of, in its own memory; None where they are not.

    Rows along the first axis are shared where each begins aligned (``IsInnerDimsSizeAligned`` and
    ``IsDim0SliceAligned`` of ``core/framework/tensor.h``).
    """
    source = values[_SOURCES[node.op]] if node.op in _SOURCES else None
    if source is None or not source.shape or node.attrs.get("axis"):
        return None
    inner = source.shape[1:]
    if prod(inner) * item_size(node.outputs[0].dtype) % _ALIGNMENT:
        return None
    shapes = [output.shape for output in node.outputs]
    # an index in the first axis alone may take the place of a range
    are_rows = node.attrs.get("shrink_axis_mask", 0) in (0, 1)
    are_rows = are_rows and all(each and each in (inner, (each[0], *inner)) for each in shapes)
    return source if are_rows else None


def _number(op: str, values: Sequence[Value]) -> Any:
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


def _inferred(node: GraphNode, values: Sequence[Value]) -> Sequence[NodeOutput]:
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
        NodeOutput(each.dtype, tuple(one.shape) if one.shape.is_fully_defined() else each.shape)
        for each, one in zip(node.outputs, made, strict=True)
    ]


def _constant(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    return [Value(None, node.outputs[0].shape, node.value)]


def _read(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    found = machine.variables.get(values[0].variable or "")
    return [NOTHING if found is None else found.shaped(None)]


def _variable_shape(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    return _shapes(machine, node, [machine.variables.get(values[0].variable or "", NOTHING)])


def _shapes(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    return [Value(None, None, None if each.shape is None else list(each.shape)) for each in values]


def _assign(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    handle, value = values
    name = handle.variable or ""
    held = value.held
    is_alone = isinstance(held, Buffer) and held.refs == 1
    new = value.shaped(None) if is_alone else Value(machine.allocate(value.nbytes), value.shape)
    keep(new)
    old = machine.variables.get(name)
    machine.assign(name, new, old)
    return []


def _update(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    name = values[0].variable or ""
    old = machine.variables.get(name)
    if old is not None and old.held is not None and old.held.refs > 1:
        # whoever has read it keeps what it was
        machine.assign(name, keep(Value(machine.allocate(old.nbytes), old.shape)), old)
    return []


_SPECIAL: Mapping[str, Callable[[Machine, GraphNode, Sequence[Value]], Sequence[Value]]] = {
    "Const": _constant,
    "ReadVariableOp": _read,
    "VariableShape": _variable_shape,
    **dict.fromkeys(("Shape", "ShapeN"), _shapes),
    "BroadcastGradientArgs": nothing,
    "AssignVariableOp": _assign,
    **dict.fromkeys(("AssignAddVariableOp", "AssignSubVariableOp"), _update),
}
