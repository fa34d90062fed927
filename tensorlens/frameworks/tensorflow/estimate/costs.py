"""About how long an operation takes on a processor: enough to tell which of two ends first."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tensorlens.frameworks.tensorflow.estimate import lists
from tensorlens.frameworks.tensorflow.estimate.held import Value
from tensorlens.frameworks.tensorflow.estimate.inference import inferred
from tensorlens.frameworks.tensorflow.estimate.nodes import Node, Shape
from tensorlens.frameworks.tensorflow.estimate.reuse import ALIASES

_FLOPS = 5e10
_BYTES, _CACHED = 5e9, 3e10
"""A second, from memory and from a core's cache."""
_CACHE = 1 << 20
_LEAST = 0.3e-6
_PACKED = 4
"""How often a transposed second matrix is gone through before it is multiplied: of small batches
a gradient of activations takes twice as long as that of the weights, of large ones as long."""

_SCATTERED = {"StridedSliceGrad": 3e-9}
"""Seconds besides for each element of the result, where they are written one by one (measured 3.0
to 3.6 ns from 4,096 elements on)."""

_ITEM = 4
_COPYING = frozenset(("TensorListStack", "TensorListFromTensor"))
_HANDING_ON = ALIASES | {"ReadVariableOp", "AssignVariableOp"}
"""Kernels that touch no element."""
_PRODUCTS = ("MatMul", "BatchMatMulV2", "_FusedMatMul", "Einsum")


def launched(node: Node, values: Sequence[Value]) -> float:
    """Return what handing a kernel to a GPU takes: the same for all."""
    return _LEAST


def seconds(node: Node, values: Sequence[Value]) -> float:
    """Return a guess from what is read, written and multiplied."""
    if node.op in _HANDING_ON or (node.op in lists.KERNELS and node.op not in _COPYING):
        return _LEAST
    made = node.outputs[0].shape if node.outputs else ()
    if made is None:
        made = inferred(node, values) or ()
    out = sum(output.nbytes or 0 for output in node.outputs)
    out = out or prod(made) * _ITEM
    read = sum(value.nbytes for value in values)
    touched = out + read
    time = _LEAST + touched / (_CACHED if touched <= _CACHE else _BYTES)
    time += _SCATTERED.get(node.op, 0.0) * prod(made)
    if node.op in _PRODUCTS and node.attrs.get("transpose_b") and len(values) > 1:
        time += _PACKED * values[1].nbytes / _BYTES
    return time + 2 * _multiplied(node.op, made, [value.shape for value in values]) / _FLOPS


def _multiplied(op: str, made: Shape, shapes: Sequence[Shape | None]) -> int:
    if op in _PRODUCTS and len(shapes) > 1 and shapes[0] and shapes[1]:
        return int((prod(shapes[0]) * prod(shapes[1]) * prod(made)) ** 0.5)
    if op in ("Conv2D", "Conv3D", "_FusedConv2D", "_FusedConv3D") and shapes[1]:
        return prod(made) * prod(shapes[1][:-1])
    if "BackpropInput" in op and len(shapes) > 2 and shapes[1] and shapes[2]:
        return prod(shapes[2]) * prod(shapes[1][:-1])
    if "BackpropFilter" in op and len(shapes) > 2 and shapes[2]:
        return prod(shapes[2]) * prod(made[:-1])
    return 0
