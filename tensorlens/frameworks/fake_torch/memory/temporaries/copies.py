"""Copies that kernels make to have tensors in the layout they work on, and copies to the card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tensorlens.frameworks.fake_torch.memory.temporaries.rules import (
    Rule,
    argument,
    contiguous,
    device_type,
    is_tensor,
    nbytes,
    taken,
)
from tensorlens.frameworks.fake_torch.tracker import Hidden
from tensorlens.records.cards import Card


def _in_layout(*places: int) -> Rule:
    """Return the rule of a kernel that has these arguments in the layout of the first one."""

    def rule(
        card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> Iterator[Hidden]:
        layout = _layout(args[places[-1]])
        for place in places:
            tensor = args[place]
            if is_tensor(tensor) and not tensor.is_contiguous(memory_format=layout):
                yield taken(nbytes(tensor), "copy in the input's layout", before=True)

    return rule


def _layout(tensor: Any) -> torch.memory_format:
    """Return a tensor's layout (``suggest_memory_format``)."""
    if tensor.is_contiguous():
        return torch.contiguous_format
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


def _plain(*places: int) -> Rule:
    def rule(
        card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> list[Hidden]:
        return contiguous(*(args[place] for place in places))

    return rule


def _rolled(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    # TensorTransformations.cu: one dimension after another
    yield from contiguous(args[0])
    for _ in range(len(args[1]) - 1):
        yield taken(nbytes(result), "rolled so far", before=True)


def _to_card(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    blocking = not kwargs.get("non_blocking")
    return _copied(result, args[0], blocking)


def _copy(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[Hidden]:
    return _copied(args[0], args[1], not argument(args, kwargs, 2, "non_blocking"))


def _copied(target: Any, source: Any, blocking: bool) -> Iterator[Hidden]:
    """Give what a copy from the host takes on the card (``Copy.cu``, copy_kernel_cuda).

    Casts are made on the host, but on the card where the copy does not block.
    """
    if not is_tensor(source) or not is_tensor(target):
        return
    if device_type(source) != "cpu" or device_type(target) != "cuda":
        return
    same = source.dtype == target.dtype
    if same and target.is_contiguous() and source.is_contiguous():
        return
    if blocking:
        if not target.is_contiguous():
            yield taken(nbytes(target), "copy before it is laid out")
    elif not same or not target.is_contiguous():
        yield taken(target.numel() * source.dtype.itemsize, "copy before it is cast")


RULES: dict[str, Rule] = {
    "max_pool2d_with_indices": _in_layout(0),
    "max_pool2d_with_indices_backward": _in_layout(0, 1),
    "max_pool3d_with_indices": _in_layout(0),
    "max_pool3d_with_indices_backward": _in_layout(0, 1),
    "avg_pool2d": _in_layout(0),
    "avg_pool2d_backward": _in_layout(0, 1),
    "avg_pool3d": _plain(0),
    "avg_pool3d_backward": _plain(0),
    "_adaptive_avg_pool2d_backward": _in_layout(0, 1),
    "upsample_bilinear2d": _in_layout(0),
    "upsample_bilinear2d_backward": _plain(0),
    "upsample_nearest2d": _in_layout(0),
    "upsample_nearest2d_backward": _in_layout(0),
    "upsample_bicubic2d_backward": _plain(0),
    "im2col": _plain(0),
    "col2im": _plain(0),
    "_weight_norm_interface_backward": _plain(0),
    "roll": _rolled,
    "_to_copy": _to_card,
    "copy_": _copy,
}
