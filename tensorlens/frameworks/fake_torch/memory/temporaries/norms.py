"""Normalizations: partial gradients, fused parameters, staging of statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tensorlens.frameworks.fake_torch.memory.temporaries.reductions import reduced
from tensorlens.frameworks.fake_torch.memory.temporaries.rules import (
    WARP,
    Rule,
    contiguous,
    is_tensor,
    nbytes,
    taken,
    up,
    wide_itemsize,
)
from tensorlens.frameworks.fake_torch.tracker import Hidden
from tensorlens.records.cards import Card

_MANY_ROWS = 64 * 1024


def _layer_norm(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[Hidden]:
    return contiguous(args[0], *args[2:4])


def _rms_norm(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[Hidden]:
    return contiguous(args[0], args[2])


def _layer_norm_backward(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[Hidden]:
    grad, source, shape, _, _, weight = args[:6]
    mask = args[7]
    return [
        *contiguous(source, weight),
        *contiguous(grad, before=False),
        *_partial(card, source, shape, [weight] * (bool(mask[1]) + bool(mask[2]))),
    ]


def _rms_norm_backward(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[Hidden]:
    grad, source, shape, _, weight, mask = args[:6]
    return [
        *contiguous(source, weight),
        *contiguous(grad, before=False),
        *_partial(card, source, shape, [weight] * bool(mask[1])),
    ]


def _partial(
    card: Card, source: Any, shape: Sequence[int], weights: Sequence[Any]
) -> Iterator[Hidden]:
    """Give the partial gradients of weight and bias.

    ``layer_norm_kernel.cu``, LaunchGammaBetaBackwardCUDAKernel: where there are many short rows
    every block sums its own 32, and what they have is summed afterwards.
    """
    columns = 1
    for size in shape:
        columns *= size
    if columns == 0:
        return
    rows = source.numel() // columns
    if rows <= _MANY_ROWS or columns // WARP >= card.multiprocessors // 2:
        return
    blocks = min(_MANY_ROWS // 2 // up(columns, WARP), up(rows, WARP))
    for weight in weights:
        if is_tensor(weight):
            itemsize = weight.dtype.itemsize
            yield taken(blocks * columns * itemsize, "partial gradients")
    if weights and is_tensor(weights[0]):
        kind = weights[0].dtype
        yield taken(columns * kind.itemsize, "summed gradient")
        yield from reduced(
            card, (blocks, columns), (columns, 1), (0,), kind.itemsize, wide_itemsize(kind)
        )


def _group_norm(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    # group_norm_kernel.cu, GroupNormKernelImplInternal: scale and shift of every channel
    source, weight, bias, samples, channels, area = args[:6]
    yield from contiguous(source)
    if area != 1 and (is_tensor(weight) or is_tensor(bias)):
        for name in ("scales", "shifts"):
            yield taken(samples * channels * wide_itemsize(source.dtype), name)


def _group_norm_backward(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    # group_norm_kernel.cu, GroupNormBackwardKernelImplInternal
    grad, source, _, _, weight, samples, channels, area, groups, mask = args[:10]
    wide = wide_itemsize(source.dtype)
    yield from contiguous(source)
    yield from contiguous(grad, before=False)
    for _ in range(2):
        yield taken(samples * channels * wide, "sums of channels")
    if mask[0]:
        if is_tensor(weight) and area != 1:
            yield taken(samples * channels * wide, "factors of channels")
        for _ in range(2):
            yield taken(samples * groups * wide, "factors of groups")


def _batch_norm(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterable[Hidden]:
    return _staging(args[0], 4)


def _batch_norm_backward(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    grad, source = args[:2]
    if _is_channels_last(source):
        if not _is_channels_last(grad):
            yield taken(nbytes(grad), "copy in the input's layout")
        sums = source.shape[1] * wide_itemsize(source.dtype)
        yield taken(sums, "sums of gradients")
        yield taken(sums, "sums of gradients")
        yield from _staging(source, 2)
    elif grad.dim() > 3 and not grad.is_contiguous():
        yield taken(nbytes(grad), "contiguous copy")


def _is_channels_last(tensor: Any) -> bool:
    if tensor.is_contiguous():
        return False
    if tensor.dim() == 4:
        return bool(tensor.is_contiguous(memory_format=torch.channels_last))
    return tensor.dim() == 5 and bool(tensor.is_contiguous(memory_format=torch.channels_last_3d))


def _staging(source: Any, factor: int) -> Iterator[Hidden]:
    """Give the staging of statistics (``Normalization.cuh``, flexible_launch_configs)."""
    if source.dim() < 2 or source.numel() == 0 or not _is_channels_last(source):
        return
    channels = source.shape[1]
    rows = source.numel() // channels
    width = min(_last_power(channels), WARP)
    height = min(_last_power(up(rows, 16)), 512 // width)
    if width * height != 512:
        width = min(_last_power(channels), 512 // height)
    blocks = min(up(rows, height * 16), 128)
    if blocks >= 8:
        wide = wide_itemsize(source.dtype)
        yield taken(factor * channels * blocks * wide, "staged statistics")
        yield taken(up(channels, width) * 4, "semaphores")


def _last_power(count: int) -> int:
    return 1 << (max(count, 1).bit_length() - 1)


def _cudnn_batch_norm_backward(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    # cudnn/BatchNorm.cpp: the gradient in the input's layout
    source, grad = args[:2]
    if _is_channels_last(source) != _is_channels_last(grad) or not (
        grad.is_contiguous() or _is_channels_last(grad)
    ):
        yield taken(nbytes(grad), "copy in the input's layout", before=True)


RULES: dict[str, Rule] = {
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "cudnn_batch_norm_backward": _cudnn_batch_norm_backward,
}
