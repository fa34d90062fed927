"""What oneDNN's kernels, put in place of TensorFlow's own on a CPU, change in a graph.

``MklLayoutRewritePass`` (``core/common_runtime/mkl_layout_pass.cc``, TensorFlow 2.21) does it as
the last one, after Grappler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorflow.python.util import _pywrap_util_port

from tensorlens.frameworks.tensorflow.estimate.nodes import Node, connect

_POOLS = {"MaxPoolGrad": "MaxPool", "MaxPool3DGrad": "MaxPool3D"}
_TYPES = ("float32", "bfloat16")
_FILTER, _BIAS = "Conv2DBackpropFilter", "BiasAddGrad"


def is_used() -> bool:
    """Return whether this process uses oneDNN: ``TF_ENABLE_ONEDNN_OPTS`` and the processor tell."""
    return bool(_pywrap_util_port.IsMklEnabled())


def rewritten(nodes: Sequence[Node]) -> list[Node]:
    """Return the graph as oneDNN's kernels run it."""
    found = _with_bias_gradients(nodes)
    _add_positions(found)
    return found


def is_merged(node: Node) -> bool:
    """Return whether it stands for two of the graph before."""
    return node.op == _FILTER and len(node.outputs) > 1


def _add_positions(nodes: Sequence[Node]) -> None:
    """Let max pooling hand the positions of the maxima to its gradient.

    It is one more result, of a byte for each element.
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


def _with_bias_gradients(nodes: Sequence[Node]) -> list[Node]:
    """Let one kernel compute the gradients of a convolution's filter and of its bias."""
    biases = {node.inputs[0]: node for node in nodes if node.op == _BIAS}
    merged: dict[int, Node] = {}
    for node in nodes:
        bias = biases.get(node.inputs[2]) if node.op == _FILTER else None
        if bias is not None and bias.number not in merged and _are_alike(node, bias):
            node.outputs = (*node.outputs, *bias.outputs)
            node.controls = (*node.controls, *bias.controls)
            merged[bias.number] = node
    if not merged:
        return list(nodes)
    left = [node for node in nodes if node.number not in merged]
    numbers = {node.number: number for number, node in enumerate(left)}
    numbers |= {gone: numbers[node.number] for gone, node in merged.items()}
    for number, node in enumerate(left):
        node.inputs = [
            (numbers[source], 1 if source in merged else slot) for source, slot in node.inputs
        ]
        node.controls = [numbers[source] for source in node.controls]
        node.number, node.consumers = number, []
    connect(left)
    return left


def _are_alike(one: Node, other: Node) -> bool:
    return all(one.attrs.get(each) == other.attrs.get(each) for each in ("T", "data_format"))
