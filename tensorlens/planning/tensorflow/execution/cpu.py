"""Scratch memory of TensorFlow's kernels on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

from tensorlens.frameworks.tensorflow.cpu import CpuCounter, cpu_counter
from tensorlens.planning.tensorflow.execution.kernels import Scratch
from tensorlens.planning.tensorflow.execution.live_values import Value
from tensorlens.planning.tensorflow.graph.nodes import Node, Shape
from tensorlens.planning.trace import Caution

_PLACE = "position of each maximum"


def scratch(node: Node, values: Sequence[Value]) -> Sequence[Scratch]:
    """Return what an operation takes besides its results."""
    rule = _RULES.get(node.op)
    return () if rule is None else rule(node, values)


def _max_pool_gradient(node: Node, values: Sequence[Value]) -> Sequence[Scratch]:
    """Pool again for the positions of the maxima (``core/kernels/maxpooling_op.cc``)."""
    if len(node.inputs) > 3:
        return ()
    pooled = values[1].nbytes
    item = 2 if node.attrs.get("T") in ("float16", "bfloat16") else 4
    return (
        Scratch(pooled, "copy of the pooled tensor", before=True),
        Scratch(pooled // item * 8, _PLACE, before=True),
    )


def _cross_entropy(node: Node, values: Sequence[Value]) -> Sequence[Scratch]:
    """One number of each row of logits (``sparse_xent_op.cc``, ``xent_op.cc``)."""
    return (Scratch(node.outputs[0].nbytes or 0, "largest logit of each row", before=True),)


_DTYPE = "bfloat16"
_PRODUCT = "MatMul"
"""Of the names of all operations that are products."""
_NAME = "own memory of the kernel"
_MOST_ELEMENTS = 1 << 25
"""Of operands, beyond which nothing is run."""
_MOST_PRODUCTS = 1 << 31
"""Multiplications beyond which nothing is run: a tenth of a second or so."""
_LARGE = (
    "what products in bfloat16 take on this processor was counted by running each once; those of "
    "more than 2 billion multiplications, or 32 million numbers, were not run: they may take more"
)


def cautions(nodes: Sequence[Node]) -> Sequence[Caution]:
    """Return that large products are not counted, where there are any in bfloat16."""
    is_there = any(node.attrs.get("T") == _DTYPE and _PRODUCT in node.op for node in nodes)
    return (Caution(_LARGE),) if is_there else ()


def product(node: Node, values: Sequence[Value]) -> Sequence[Scratch]:
    """Return what a product of matrices takes besides its result."""
    one, other = (value.shape for value in values[:2])
    if node.attrs.get("T") != _DTYPE or one is None or other is None:
        return ()
    turned = bool(node.attrs.get("transpose_a") or node.attrs.get("adj_x"))
    own = _taken(one, other, turned, bool(node.attrs.get("transpose_b") or node.attrs.get("adj_y")))
    return (Scratch(own, _NAME),) if own else ()


@functools.cache
def _taken(one: Shape, other: Shape, first_turned: bool, second_turned: bool) -> int:
    """Return the bytes beside the result; 0 where that cannot be told."""
    counter = cpu_counter()
    columns = other[-2] if second_turned else other[-1]
    is_large = prod(one) + prod(other) > _MOST_ELEMENTS or prod(one) * columns > _MOST_PRODUCTS
    if not isinstance(counter, CpuCounter) or is_large:
        return 0
    read = counter.reader()
    with tf.init_scope(), tf.device("CPU:0"):
        zeros = tf.zeros(one, _DTYPE), tf.zeros(other, _DTYPE)
        before = read()[0]
        result = tf.linalg.matmul(*zeros, transpose_a=first_turned, transpose_b=second_turned)
        peak = read()[1]
    return max(0, int(peak - before - prod(result.shape) * result.dtype.size))


_POOLS = {"MaxPoolGrad": "MaxPool", "MaxPool3DGrad": "MaxPool3D"}
_TYPES = ("float32", "bfloat16")


def is_used() -> bool:
    """Return whether this process uses oneDNN: ``TF_ENABLE_ONEDNN_OPTS`` and the processor tell."""
    return bool(_pywrap_util_port.IsMklEnabled())


def add_positions(nodes: Sequence[Node]) -> None:
    """Let max pooling hand the positions of the maxima to its gradient.

    It is one more result, of a byte for each element (``core/common_runtime/mkl_layout_pass.cc``,
    TensorFlow 2.21).
    """
    for node in nodes:
        if node.op not in _POOLS or len(node.inputs) != 3:
            continue
        source = nodes[node.inputs[1][0]]
        if source.op != _POOLS[node.op] or node.attrs.get("T") not in _TYPES:
            continue
        positions = replace(source.outputs[0], dtype="uint8")
        if len(source.outputs) == 1:
            source.outputs = (*source.outputs, positions)
        node.inputs = (*node.inputs, (source.number, 1))
        source.consumers.append((1, node.number, 3))


_RULES: Mapping[str, Callable[[Node, Sequence[Value]], Sequence[Scratch]]] = {
    "MaxPoolGrad": _max_pool_gradient,
    **dict.fromkeys(
        ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), _cross_entropy
    ),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2"), product),
}
