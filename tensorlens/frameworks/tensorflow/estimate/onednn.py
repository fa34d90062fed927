"""What oneDNN's kernels, put in place of TensorFlow's own on a CPU, make besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorflow.python.util import _pywrap_util_port

from tensorlens.frameworks.tensorflow.estimate.nodes import Node

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
