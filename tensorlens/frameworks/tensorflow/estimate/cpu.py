"""What TensorFlow's kernels on the CPU take for themselves while they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tensorlens.frameworks.tensorflow.estimate.held import Value
from tensorlens.frameworks.tensorflow.estimate.nodes import Node
from tensorlens.frameworks.tensorflow.estimate.products import product
from tensorlens.frameworks.tensorflow.estimate.scratch import Scratch

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


_RULES: Mapping[str, Callable[[Node, Sequence[Value]], Sequence[Scratch]]] = {
    "MaxPoolGrad": _max_pool_gradient,
    **dict.fromkeys(
        ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), _cross_entropy
    ),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2"), product),
}
