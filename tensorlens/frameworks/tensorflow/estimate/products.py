"""What products in bfloat16 take on this processor: each is run once, on zeros, and counted.

oneDNN, which runs them, asks TensorFlow's CPU allocator for room by what the processor can do; no
rule tells how much. Products in float32 take none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod

import tensorflow as tf

from tensorlens.frameworks.tensorflow.cpu import CpuCounter, cpu_counter
from tensorlens.frameworks.tensorflow.estimate.held import Value
from tensorlens.frameworks.tensorflow.estimate.nodes import Node, Shape
from tensorlens.frameworks.tensorflow.estimate.scratch import Scratch
from tensorlens.records.traces import Caution

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
