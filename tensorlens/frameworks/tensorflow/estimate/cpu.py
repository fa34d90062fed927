"""What TensorFlow's kernels on the CPU take for themselves while they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

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


_RULES: Mapping[str, Callable[[Node, Sequence[Value]], Sequence[Scratch]]] = {
    "MaxPoolGrad": _max_pool_gradient,
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2"), product),
}

_POOLS = {"MaxPoolGrad": "MaxPool", "MaxPool3DGrad": "MaxPool3D"}


def with_positions(nodes: Sequence[Node]) -> None:
    """Let max pooling hand the positions of the maxima to its gradient, as oneDNN's kernels do.

    ``MklLayoutRewritePass`` (``core/common_runtime/mkl_layout_pass.cc``) puts them in place of
    TensorFlow's own: one more result, of a byte for each element.
    """
    for node in nodes:
        if node.op not in _POOLS or len(node.inputs) != 3:
            continue
        source = nodes[node.inputs[1][0]]
        if source.op != _POOLS[node.op] or node.attrs.get("T") not in ("float32", "bfloat16"):
            continue
        positions = replace(source.outputs[0], dtype="uint8")
        if len(source.outputs) == 1:
            source.outputs = (*source.outputs, positions)
        node.inputs = (*node.inputs, (source.number, 1))
        source.consumers.append((1, node.number, 3))
