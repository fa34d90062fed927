"""Scratch memory of TensorFlow's kernels on a GPU.

The rules are read from ``tensorflow/core/kernels`` (``cudnn_pooling_gpu.cc``, ``conv_ops_impl.h``,
``conv_grad_input_ops.h``, ``conv_grad_ops_3d.cc``) of TensorFlow 2.21.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorlens.planning.card import Card
from tensorlens.planning.tensorflow.execution.kernels import Scratch
from tensorlens.planning.tensorflow.execution.live_values import Value
from tensorlens.planning.tensorflow.graph.nodes import Node

TRANSPOSED = "copies with channels first"
WORKSPACE = "cuDNN workspace"
FILTER = "filter in cuDNN's layout"

_CHANNELS_LAST = ("NHWC", "NDHWC")
_LIMIT = 4 << 30
"""``TF_CUDNN_WORKSPACE_LIMIT_IN_MB`` by default."""
_VOLTA, _AMPERE = (7, 0), (8, 0)
_FORWARD = ("Conv2D", "Conv3D", "_FusedConv2D", "_FusedConv3D", "DepthwiseConv2dNative")


def scratch_of(card: Card | None) -> Callable[[Node, Sequence[Value]], Sequence[Scratch]]:
    """Return the rules for a card."""
    capability = (8, 0) if card is None else card.capability

    def scratch(node: Node, values: Sequence[Value]) -> Sequence[Scratch]:
        op = node.op
        if op in ("MaxPool3D", "AvgPool3D", "MaxPool3DGrad", "AvgPool3DGrad"):
            return _pooled(node, values)
        if op.startswith(("Conv2D", "Conv3D", "_FusedConv")):
            return _convolved(node, values, capability)
        return ()

    return scratch


def _pooled(node: Node, values: Sequence[Value]) -> Sequence[Scratch]:
    """CuDNN pools three dimensions with channels first only: everything is copied."""
    if node.attrs.get("data_format") not in _CHANNELS_LAST:
        return ()
    made = node.outputs[0].nbytes or 0
    given = [value.nbytes for value in values]
    if node.op == "AvgPool3DGrad":
        # it has a copy for the input and the output too, which nothing is written into
        given = [made, given[-1], given[-1]]
    return [Scratch(nbytes, TRANSPOSED) for nbytes in (*given, made)]


def _convolved(
    node: Node, values: Sequence[Value], capability: tuple[int, int]
) -> Sequence[Scratch]:
    made = node.outputs[0].nbytes or 0
    if node.op in _FORWARD:
        read, weights = values[0].nbytes, values[1].nbytes
    elif "BackpropInput" in node.op:
        read, weights = values[2].nbytes, values[1].nbytes
    else:
        read, weights, made = values[0].nbytes + values[2].nbytes, made, 0
    found = [Scratch(weights, FILTER)]
    if node.attrs.get("data_format", "NHWC") in _CHANNELS_LAST and not _reads_channels_last(
        node, capability
    ):
        found += [Scratch(nbytes, TRANSPOSED) for nbytes in (read, made) if nbytes]
    # nobody has measured what is likely: it only makes the upper bound wider
    found.append(Scratch(0, WORKSPACE, 0, min(read + made + 4 * weights, _LIMIT)))
    return found


def _reads_channels_last(node: Node, capability: tuple[int, int]) -> bool:
    """Tell whether cuDNN computes it as it is (``ComputeInNhwcEnabled``)."""
    kind = node.attrs.get("T")
    if kind == "float16":
        return capability >= _VOLTA
    return "2D" in node.op and capability >= _AMPERE
