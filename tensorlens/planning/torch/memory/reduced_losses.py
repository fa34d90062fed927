"""Losses that keep the memory of each element's loss: ``mse_loss`` of an image is as large as it.

Their kernels make the result as large as that, and then say that it has one element
(``aten/src/ATen/native/BinaryOps.cpp`` and ``Loss.cpp``, for the CPU and CUDA). Fake tensors have
one element from the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_aten = torch.ops.aten
_LOSSES = frozenset(
    (
        _aten.mse_loss.default,
        _aten.smooth_l1_loss.default,
        _aten.soft_margin_loss.default,
        _aten.binary_cross_entropy.default,
    )
)


def keep_elements(func: Any, args: Sequence[Any], result: Any) -> None:
    """Give the result of an operator the memory of all elements, if it is such a loss, reduced."""
    if func in _LOSSES and not result.dim():
        elements = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()
        result.untyped_storage().resize_(elements * result.element_size())
