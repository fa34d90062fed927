"""Scratch memory of TensorFlow's kernels, on a GPU and on the CPU.

The rules for a GPU are read from ``tensorflow/core/kernels`` (``cudnn_pooling_gpu.cc``,
``conv_ops_impl.h``, ``conv_grad_input_ops.h``, ``conv_grad_ops_3d.cc``) of TensorFlow 2.21.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

from tensorlens.frameworks.tensorflow.cpu import allocator
from tensorlens.planning.card import Card
from tensorlens.planning.tensorflow.graphs.graph import GraphNode, Shape
from tensorlens.planning.tensorflow.graphs.kernels import Value


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that belongs to no tensor of the graph."""

    nbytes: int
    """Likeliest size, if it depends on the device."""
    name: str
    """A name for reports: ``cuDNN workspace``."""
    least: int = -1
    most: int = -1
    """Upper bound; if both bounds are -1, the size is exact."""


ScratchOf = Callable[[GraphNode, Sequence[Value]], Sequence[Scratch]]
"""Returns the scratch memory of an operation."""


_MATMULS = ("MatMul", "BatchMatMul", "BatchMatMulV2")
BFLOAT16 = "bfloat16"
_MAX_MULTIPLICATIONS = 1 << 31
"""Largest product that is run, in multiplications: about a tenth of a second."""


def host_scratch(node: GraphNode, values: Sequence[Value]) -> Sequence[Scratch]:
    """Return the scratch memory of an operation on the CPU.

    Only bfloat16 products have any that matters. It depends on the processor, so each product is
    run once and counted.
    """
    if node.op not in _MATMULS or node.attrs.get("T") != BFLOAT16:
        return ()
    one, other = (value.shape for value in values[:2])
    if one is None or other is None:
        return ()
    transpose_a = bool(node.attrs.get("transpose_a") or node.attrs.get("adj_x"))
    transpose_b = bool(node.attrs.get("transpose_b") or node.attrs.get("adj_y"))
    own = _kernel_memory(one, other, transpose_a, transpose_b)
    return (Scratch(own, "own memory of the kernel"),) if own else ()


@functools.cache
def _kernel_memory(one: Shape, other: Shape, transpose_a: bool, transpose_b: bool) -> int:
    """Return the bytes beside the result; 0 if unknown."""
    counted = allocator()
    columns = other[-2] if transpose_b else other[-1]
    if counted is None or prod(one) * columns > _MAX_MULTIPLICATIONS:
        return 0
    read = counted.read
    with tf.init_scope(), tf.device("CPU:0"):
        zeros = tf.zeros(one, BFLOAT16), tf.zeros(other, BFLOAT16)
        before = read()[0]
        result = tf.linalg.matmul(*zeros, transpose_a=transpose_a, transpose_b=transpose_b)
        peak = read()[1]
    return max(0, int(peak - before - prod(result.shape) * result.dtype.size))


_POOLS = {"MaxPoolGrad": "MaxPool", "MaxPool3DGrad": "MaxPool3D"}


def add_positions(nodes: Sequence[GraphNode]) -> None:
    """Add the positions of the maxima to the outputs of max pooling and the inputs of its gradient.

    oneDNN has this output, of one byte an element (``core/common_runtime/mkl_layout_pass.cc`` of
    TensorFlow 2.21).
    """
    if not _pywrap_util_port.IsMklEnabled():
        return
    by_number = {node.number: node for node in nodes}
    for node in nodes:
        if node.op not in _POOLS or len(node.inputs) != 3:
            continue
        source = by_number[node.inputs[1][0]]
        if source.op != _POOLS[node.op] or node.attrs.get("T") not in ("float32", "bfloat16"):
            continue
        if len(source.outputs) == 1:
            source.outputs = (*source.outputs, replace(source.outputs[0], dtype="uint8"))
        node.inputs = (*node.inputs, (source.number, 1))


_TRANSPOSED = "copies with channels first"
_WORKSPACE = "cuDNN workspace"
_FILTER = "filter in cuDNN's layout"

_CHANNELS_LAST = ("NHWC", "NDHWC")
_LIMIT = 4 << 30
"""``TF_CUDNN_WORKSPACE_LIMIT_IN_MB`` by default."""
_VOLTA, _AMPERE = (7, 0), (8, 0)
_FORWARD = ("Conv2D", "Conv3D", "_FusedConv2D", "_FusedConv3D", "DepthwiseConv2dNative")


def scratch_of(card: Card | None) -> ScratchOf:
    """Return the rules for kernels on a card."""
    capability = (8, 0) if card is None else card.capability

    def scratch(node: GraphNode, values: Sequence[Value]) -> Sequence[Scratch]:
        op = node.op
        if op in ("MaxPool3D", "AvgPool3D", "MaxPool3DGrad", "AvgPool3DGrad"):
            return _pooled(node, values)
        if op.startswith(("Conv2D", "Conv3D", "_FusedConv")):
            return _convolved(node, values, capability)
        return ()

    return scratch


def _pooled(node: GraphNode, values: Sequence[Value]) -> Sequence[Scratch]:
    """Return the copies of 3-D pooling, which cuDNN does with channels first only."""
    if node.attrs.get("data_format") not in _CHANNELS_LAST:
        return ()
    made = node.outputs[0].nbytes or 0
    given = [value.nbytes for value in values]
    if node.op == "AvgPool3DGrad":
        # it allocates copies of the input and the output too, and leaves them empty
        given = [made, given[-1], given[-1]]
    return [Scratch(nbytes, _TRANSPOSED) for nbytes in (*given, made)]


def _convolved(
    node: GraphNode, values: Sequence[Value], capability: tuple[int, int]
) -> Sequence[Scratch]:
    made = node.outputs[0].nbytes or 0
    if node.op in _FORWARD:
        read, weights = values[0].nbytes, values[1].nbytes
    elif "BackpropInput" in node.op:
        read, weights = values[2].nbytes, values[1].nbytes
    else:
        read, weights, made = values[0].nbytes + values[2].nbytes, made, 0
    found = [Scratch(weights, _FILTER)]
    if node.attrs.get("data_format", "NHWC") in _CHANNELS_LAST and not _reads_channels_last(
        node, capability
    ):
        found += [Scratch(nbytes, _TRANSPOSED) for nbytes in (read, made) if nbytes]
    # the likely size was not measured: only the upper bound gets wider
    found.append(Scratch(0, _WORKSPACE, 0, min(read + made + 4 * weights, _LIMIT)))
    return found


def _reads_channels_last(node: GraphNode, capability: tuple[int, int]) -> bool:
    """Return whether cuDNN reads channels last (``ComputeInNhwcEnabled``)."""
    kind = node.attrs.get("T")
    if kind == "float16":
        return capability >= _VOLTA
    return "2D" in node.op and capability >= _AMPERE
