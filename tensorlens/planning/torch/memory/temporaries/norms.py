"""Normalizations, softmax and losses: copies, partial gradients, losses of each element.

Statistics of batches, groups and channels are left out: they are thousandths of an activation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch

from tensorlens.planning.card import Card
from tensorlens.planning.torch.memory.temporaries.reductions import reduced
from tensorlens.planning.torch.memory.temporaries.rules import (
    WARP,
    Call,
    Rule,
    ceil_div,
    contiguous,
    contiguous_arguments,
    is_channels_last,
    is_tensor,
    layout,
    nbytes,
    scratch,
    wide_itemsize,
)
from tensorlens.planning.torch.tracker import Scratch

_MEAN = 1


def _softmax_backward(call: Call) -> Iterator[Scratch]:
    # SoftMax.cu, softmax_backward_cuda_out: grad * output, in their common type and layout
    grad, output = call.args[:2]
    itemsize = torch.promote_types(grad.dtype, output.dtype).itemsize
    product = output.numel() * itemsize
    yield scratch(product, "product of gradient and output")
    if not grad.is_contiguous() and grad.numel() and 0 not in grad.stride():
        yield scratch(product, "contiguous copy")
    yield from contiguous(output, before=False)


def _safe_softmax(call: Call) -> Iterator[Scratch]:
    # aten/src/ATen/native/transformers/attention.cpp: rows that are all -inf become zeros
    yield from contiguous(call.args[0])
    yield scratch(nbytes(call.result), "softmax", before=True)
    yield scratch(call.result.numel(), "mask", before=True)


def _pointwise(call: Call) -> Iterator[Scratch]:
    # PointwiseOps and Loss.cpp: what is reduced is written out first
    reduction = call.argument(2, "reduction")
    if reduction == 0:
        return
    shape = torch.broadcast_shapes(call.args[0].shape, call.args[1].shape)
    yield scratch(shape.numel() * call.result.dtype.itemsize, "loss of each element")


def _cross_entropy_of_logits(call: Call) -> Iterator[Scratch]:
    # Loss.cpp, binary_cross_entropy_with_logits: log-sigmoid, and (1 - target) made the loss
    each = call.args[0].numel() * call.result.dtype.itemsize
    yield scratch(each, "log-sigmoid", before=True)
    if is_tensor(call.argument(3, "pos_weight")):
        yield scratch(each, "weights", before=True)
        yield scratch(each, "weighted log-sigmoid", before=True)
    reduction = call.argument(4, "reduction")
    if reduction in (None, _MEAN, 2):
        yield scratch(each, "loss of each element", before=True)


def _alignment_backward(call: Call) -> list[Scratch]:
    # LossCTC.cu: log_beta is as large as log_alpha
    return [scratch(nbytes(call.args[6]), "log beta")]


_LOSSES: dict[str, Rule] = {
    "_softmax": contiguous_arguments(0, before=False),
    "_log_softmax": contiguous_arguments(0, before=False),
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": contiguous_arguments(0, 1, before=False),
    "_safe_softmax": _safe_softmax,
    "mse_loss": _pointwise,
    "smooth_l1_loss": _pointwise,
    "huber_loss": _pointwise,
    "binary_cross_entropy_with_logits": _cross_entropy_of_logits,
    # NLLLoss2d.cu, Loss.cu: inputs, targets and weights
    "nll_loss_forward": contiguous_arguments(0, 1, 2, before=False),
    "nll_loss2d_forward": contiguous_arguments(0, 1, 2, before=False),
    "nll_loss_backward": contiguous_arguments(2, 3, before=False),
    "nll_loss2d_backward": contiguous_arguments(2, 3, before=False),
    "_ctc_loss_backward": _alignment_backward,
}


_MANY_ROWS = 64 * 1024


def _layer_norm_backward(call: Call) -> list[Scratch]:
    grad, source, shape, _, _, weight, _, mask = call.args[:8]
    return _affine_backward(call.card, grad, source, shape, weight, bool(mask[1]) + bool(mask[2]))


def _rms_norm_backward(call: Call) -> list[Scratch]:
    grad, source, shape, _, weight, mask = call.args[:6]
    return _affine_backward(call.card, grad, source, shape, weight, int(mask[1]))


def _affine_backward(
    card: Card, grad: Any, source: Any, shape: Sequence[int], weight: Any, gradients: int
) -> list[Scratch]:
    return [
        *contiguous(source, weight),
        *contiguous(grad, before=False),
        *(_partial(card, source, shape, weight, gradients) if is_tensor(weight) else ()),
    ]


def _partial(
    card: Card, source: Any, shape: Sequence[int], weight: Any, gradients: int
) -> Iterator[Scratch]:
    """Give the partial gradients of a weight and a bias.

    ``layer_norm_kernel.cu``, LaunchGammaBetaBackwardCUDAKernel: where there are many short rows
    every block sums its own 32, and what they have is summed afterwards.
    """
    columns = prod(shape)
    if not columns or not gradients:
        return
    rows = source.numel() // columns
    if rows <= _MANY_ROWS or columns // WARP >= card.multiprocessors // 2:
        return
    blocks = min(_MANY_ROWS // 2 // ceil_div(columns, WARP), ceil_div(rows, WARP))
    itemsize = weight.dtype.itemsize
    for _ in range(gradients):
        yield scratch(blocks * columns * itemsize, "partial gradients")
    yield scratch(columns * itemsize, "summed gradient")
    yield from reduced(card, (blocks, columns), (columns, 1), (0,), wide_itemsize(weight.dtype))


def _group_norm_backward(call: Call) -> list[Scratch]:
    return [*contiguous(call.args[1]), *contiguous(call.args[0], before=False)]


def _batch_norm_backward(call: Call) -> Iterator[Scratch]:
    grad, source = call.args[:2]
    if is_channels_last(source):
        if not is_channels_last(grad):
            yield scratch(nbytes(grad), "copy in the input's layout")
    elif grad.dim() > 3 and not grad.is_contiguous():
        yield scratch(nbytes(grad), "contiguous copy")


def _cudnn_batch_norm_backward(call: Call) -> Iterator[Scratch]:
    # cudnn/BatchNorm.cpp: the gradient in the input's layout
    source, grad = call.args[:2]
    if not grad.is_contiguous(memory_format=layout(source)):
        yield scratch(nbytes(grad), "copy in the input's layout", before=True)


RULES: dict[str, Rule] = {
    **_LOSSES,
    "native_layer_norm": contiguous_arguments(0, 2, 3),
    "native_layer_norm_backward": _layer_norm_backward,
    "_fused_rms_norm": contiguous_arguments(0, 2),
    "_fused_rms_norm_backward": _rms_norm_backward,
    "native_group_norm": contiguous_arguments(0),
    "native_group_norm_backward": _group_norm_backward,
    "native_batch_norm_backward": _batch_norm_backward,
    "cudnn_batch_norm_backward": _cudnn_batch_norm_backward,
}
