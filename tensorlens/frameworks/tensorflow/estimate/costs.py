"""About how long an operation takes on a processor: enough to tell which of two ends first."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tensorlens.frameworks.tensorflow.estimate.held import Value
from tensorlens.frameworks.tensorflow.estimate.nodes import Node

_FLOPS = 5e10
_BYTES = 5e9
_LEAST = 2e-6
_PACKED = 4
"""How often a transposed second matrix is gone through before it is multiplied: of small batches
a gradient of activations takes twice as long as that of the weights, of large ones as long."""

_PRODUCTS = ("MatMul", "BatchMatMulV2", "_FusedMatMul", "Einsum")


def launched(node: Node, values: Sequence[Value]) -> float:
    """Return what handing a kernel to a GPU takes: the same for all."""
    return _LEAST


def seconds(node: Node, values: Sequence[Value]) -> float:
    """Return a guess from what is read, written and multiplied."""
    out = sum(output.nbytes or 0 for output in node.outputs)
    read = sum(value.nbytes for value in values)
    time = _LEAST + (out + read) / _BYTES
    if node.op in _PRODUCTS and node.attrs.get("transpose_b") and len(values) > 1:
        time += _PACKED * values[1].nbytes / _BYTES
    return time + 2 * _multiplied(node, values) / _FLOPS


def _multiplied(node: Node, values: Sequence[Value]) -> int:
    op = node.op
    shapes = [value.shape for value in values]
    if op in _PRODUCTS and len(shapes) > 1 and shapes[0] and shapes[1]:
        made = prod(node.outputs[0].shape or ())
        if not made:
            return 0
        return int((prod(shapes[0]) * prod(shapes[1]) * made) ** 0.5)
    if op in ("Conv2D", "Conv3D", "_FusedConv2D", "_FusedConv3D") and shapes[1]:
        return prod(node.outputs[0].shape or ()) * prod(shapes[1][:-1])
    if "BackpropInput" in op and len(shapes) > 2 and shapes[1] and shapes[2]:
        return prod(shapes[2]) * prod(shapes[1][:-1])
    if "BackpropFilter" in op and len(shapes) > 2 and shapes[2]:
        return prod(shapes[2]) * prod((node.outputs[0].shape or ())[:-1])
    return 0
