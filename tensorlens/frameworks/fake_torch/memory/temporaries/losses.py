"""Softmax and losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tensorlens.frameworks.fake_torch.memory.temporaries.reductions import sum_of_dense
from tensorlens.frameworks.fake_torch.memory.temporaries.rules import (
    INDEX_BYTES,
    Rule,
    argument,
    contiguous,
    is_tensor,
    nbytes,
    taken,
)
from tensorlens.frameworks.fake_torch.tracker import Hidden
from tensorlens.records.cards import Card

_MEAN = 1


def _first(card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> list[Hidden]:
    return contiguous(args[0], before=False)


def _first_two(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[Hidden]:
    return contiguous(*args[:2], before=False)


def _softmax_backward(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    # SoftMax.cu, softmax_backward_cuda_out: grad * output, in their common type and layout
    grad, output = args[:2]
    itemsize = torch.promote_types(grad.dtype, output.dtype).itemsize
    product = output.numel() * itemsize
    yield taken(product, "product of gradient and output")
    if not grad.is_contiguous() and grad.numel() and 0 not in grad.stride():
        yield taken(product, "contiguous copy")
    yield from contiguous(output, before=False)


def _safe_softmax(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    # aten/src/ATen/native/transformers/attention.cpp: rows that are all -inf become zeros
    yield from contiguous(args[0])
    yield taken(nbytes(result), "softmax", before=True)
    yield taken(result.numel(), "mask", before=True)


def _masked_softmax_backward(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    # SoftMax.cu, masked_softmax_backward_cuda
    grad, output, mask = args[:3]
    yield from contiguous(grad, output, mask, before=False)
    yield taken(nbytes(grad), "product of gradient and output")


def _pointwise(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    # PointwiseOps and Loss.cpp: what is reduced is written out first
    reduction = argument(args, kwargs, 2, "reduction")
    if reduction == 0:
        return
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    yield taken(shape.numel() * result.dtype.itemsize, "loss of each element")
    yield from sum_of_dense(card, shape.numel(), result.dtype)


def _cross_entropy_of_chances(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    # Loss.cu, binary_cross_entropy_cuda: the result's own memory holds the loss of each element
    if argument(args, kwargs, 3, "reduction") != 0:
        yield taken(result.dtype.itemsize, "reduced loss")
        yield from sum_of_dense(card, args[0].numel(), result.dtype)


def _cross_entropy_of_logits(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    # Loss.cpp, binary_cross_entropy_with_logits: log-sigmoid, and (1 - target) made the loss
    each = args[0].numel() * result.dtype.itemsize
    yield taken(each, "log-sigmoid", before=True)
    if is_tensor(argument(args, kwargs, 3, "pos_weight")):
        yield taken(each, "weights", before=True)
        yield taken(each, "weighted log-sigmoid", before=True)
    reduction = argument(args, kwargs, 4, "reduction")
    if reduction in (None, _MEAN, 2):
        yield taken(each, "loss of each element", before=True)
        yield from sum_of_dense(card, args[0].numel(), result.dtype)


def _likelihood(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[Hidden]:
    # NLLLoss2d.cu, Loss.cu: inputs, targets and weights are made contiguous
    return contiguous(*args[:3], before=False)


def _likelihood_backward(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[Hidden]:
    return contiguous(args[2], args[3], before=False)


def _alignment(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    # LossCTC.cu: lengths and offsets of the batch
    batch = args[0].shape[1] if args[0].dim() == 3 else 1
    for name in ("target lengths", "input lengths", "offsets"):
        yield taken(batch * INDEX_BYTES, name)


def _alignment_backward(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    # LossCTC.cu: log_beta is as large as log_alpha
    log_alpha = args[6]
    yield taken(nbytes(log_alpha), "log beta")
    for name in ("target lengths", "input lengths", "offsets"):
        yield taken(log_alpha.shape[0] * INDEX_BYTES, name)


RULES: dict[str, Rule] = {
    "_softmax": _first,
    "_log_softmax": _first,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _first_two,
    "_safe_softmax": _safe_softmax,
    "_masked_softmax_backward": _masked_softmax_backward,
    "mse_loss": _pointwise,
    "smooth_l1_loss": _pointwise,
    "huber_loss": _pointwise,
    "binary_cross_entropy": _cross_entropy_of_chances,
    "binary_cross_entropy_with_logits": _cross_entropy_of_logits,
    "nll_loss_forward": _likelihood,
    "nll_loss2d_forward": _likelihood,
    "nll_loss_backward": _likelihood_backward,
    "nll_loss2d_backward": _likelihood_backward,
    "_ctc_loss": _alignment,
    "_ctc_loss_backward": _alignment_backward,
}
