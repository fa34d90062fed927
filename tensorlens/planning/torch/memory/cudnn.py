"""Workspaces of cuDNN: convolutions and recurrent networks.

Convolutions: while one runs, torch allocates the workspace of the first plan of cuDNN's heuristics
(``run_conv_plan`` of ``aten/src/ATen/native/cudnn/Conv_v8.cpp``, without a limit). Only a card can
tell which plan that is. Least: nothing, an implicit matrix product that reads its operands in
place. Most: operands and result in another layout, as kernels for tensor cores want channels last;
four times that with ``torch.backends.cudnn.benchmark``, which tries other plans too. Likely is
nothing with channels last, else, with channels in tiles of T:

========  ==========================================  =============================
filter    with tensor cores for the type              without
========  ==========================================  =============================
1 pixel   both operands, T = 32                       nothing
larger    the larger operand but the filter, T = 4    operands and result, T = 4
========  ==========================================  =============================

The column with tensor cores was fitted to ten trainings of convolutional networks published with
xMem (peaks of NVML on an RTX 3060 in float32, which is TF32 in cuDNN), the other to the lines of a
CIFAR network that pytorch_memlab printed on a card of its time.

Recurrent networks: likely the gates of all steps of one layer, the result of one matrix product
(``cudnnGetRNNTempSpaceSizes`` in ``aten/src/ATen/native/cudnn/RNN.cpp``); least nothing, most the
gates of all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensorlens.planning.card import Card
from tensorlens.planning.torch.memory.kernels import (
    Call,
    Rule,
    Scratch,
    ceil_div,
    is_channels_last,
    nbytes,
    scratch,
)

_TILE, _ALIGNED = 32, 4
"""Channels that a kernel for tensor cores takes at a time, and those in the 16 bytes to which it
aligns pixels in float32."""
_LSTM, _GRU = 2, 3
_GATES = {_LSTM: 4, _GRU: 3}
_SAVED = {_LSTM: 6, _GRU: 5}


def rnn_reserve(mode: int, elements: int, layers: int, itemsize: int, dropout: float = 0.0) -> int:
    """Return the likely bytes of the fourth result of ``_cudnn_rnn``, which is kept for backward.

    cuDNN's formula is not public. Assumed are, for each element and layer, the gates and states
    that backward needs: 6 numbers for an LSTM, 5 for a GRU, 2 for a plain network; and a byte for
    each element that dropout may zero between layers. ``elements`` is the product of steps,
    sequences, hidden size and directions.
    """
    saved = elements * layers * _SAVED.get(mode, 2) * itemsize
    return saved + (elements * (layers - 1) if dropout > 0 else 0)


def _recurrent(first: int) -> Rule:
    """Return the rule of an operator with the mode at this place among its arguments."""

    def rule(call: Call) -> list[Scratch]:
        mode, hidden_size, _, layers = call.args[first : first + 4]
        source = call.args[0]
        rows = source.numel() // max(source.size(-1), 1)
        layer = rows * hidden_size * _GATES.get(mode, 1) * source.element_size()
        likely = layer * (2 if call.args[first + 7] else 1)
        return [Scratch(likely, 0, likely * max(layers, 1), "cuDNN RNN workspace")]

    return rule


def _convolution(call: Call) -> list[Scratch]:
    source, weight, transposed, groups = *call.args[:2], call.args[6], call.args[8]
    copies = _contiguous(source, weight)
    if not call.result.numel() or _is_native_depthwise(source, groups, transposed):
        return copies
    return [*copies, _workspace(call.card, [(source, weight, call.result)], weight)]


def _convolution_backward(call: Call) -> list[Scratch]:
    gradient, source, weight = call.args[:3]
    transposed, groups, wanted = call.args[7], call.args[9], call.args[10]
    copies = _contiguous(gradient, source, weight)
    passes = []
    if wanted[0]:
        passes.append((gradient, weight, source))
    if wanted[1]:
        passes.append((source, gradient, weight))
    if not gradient.numel() or not passes or _is_native_depthwise(source, groups, transposed):
        return copies
    return [*copies, _workspace(call.card, passes, weight)]


def _is_native_depthwise(source: Any, groups: int, transposed: bool) -> bool:
    """Tell whether torch's own kernel without scratch runs it: depthwise in float32.

    ``is_depthwise`` and ``use_cudnn_depthwise`` of ``aten/src/ATen/native/Convolution.cpp``.
    """
    depthwise = not transposed and groups > 1 and groups == source.size(1)
    return depthwise and source.dtype == torch.float32 and source.is_contiguous()


def _workspace(card: Card, passes: Sequence[tuple[Any, Any, Any]], weight: Any) -> Scratch:
    """Return the largest workspace of passes, each of two operands and a result."""
    filter_size = max(weight.shape[2:], default=1)
    likely = most = 0
    for one, other, result in passes:
        most = max(most, sum(_tiled(each, _TILE) for each in (one, other, result)))
        if is_channels_last(one) or is_channels_last(other):
            continue
        cores = _has_tensor_cores(card, one.dtype)
        if filter_size > 1 and not cores:
            size = sum(_tiled(each, _ALIGNED) for each in (one, other, result))
        elif filter_size > 1:
            size = max(_tiled(each, _ALIGNED) for each in (one, other) if each is not weight)
        else:
            size = _tiled(one, _TILE) + _tiled(other, _TILE) if cores else 0
        likely = max(likely, size)
    if torch.backends.cudnn.benchmark:
        most *= 4
    return Scratch(likely, 0, most, "cuDNN workspace")


def _has_tensor_cores(card: Card, dtype: torch.dtype) -> bool:
    if dtype == torch.float32:
        return card.capability >= (8, 0) and bool(torch.backends.cudnn.allow_tf32)
    if dtype == torch.float16:
        return card.capability >= (7, 0)
    return dtype == torch.bfloat16 and card.capability >= (8, 0)


def _tiled(tensor: Any, tile: int) -> int:
    """Return the bytes of a tensor with its channels padded to whole tiles."""
    channels: int = max(tensor.size(1), 1)
    return nbytes(tensor) // channels * ceil_div(channels, tile) * tile


def _contiguous(*tensors: Any) -> list[Scratch]:
    """Return the copies of tensors that have another layout than the convolution."""
    last = any(is_channels_last(each) for each in tensors[-2:])
    return [
        scratch(nbytes(each), "contiguous copy", is_taken_first=True)
        for each in tensors
        if not (is_channels_last(each) if last else each.is_contiguous()) and not _is_thin(each)
    ]


def _is_thin(tensor: Any) -> bool:
    """Tell whether channels first and channels last are the same layout."""
    return bool(tensor.size(1) == 1 or all(size == 1 for size in tensor.shape[2:])) and bool(
        tensor.is_contiguous() or is_channels_last(tensor)
    )


RULES: dict[str, Rule] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_cudnn_rnn": _recurrent(6),
    "_cudnn_rnn_backward": _recurrent(10),
}
