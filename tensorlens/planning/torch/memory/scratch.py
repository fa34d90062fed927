"""Memory that kernels take and no fake tensor shows, and results that are larger than they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that a kernel takes for itself, which no fake tensor shows."""

    nbytes: int
    """Bytes asked for; the likeliest, where that depends on the device."""
    least: int
    most: int
    name: str
    """Its name: ``cuDNN workspace``."""
    is_taken_first: bool = False
    """Whether it is taken before the operator's results are."""
    is_kept: bool = False
    """Whether it outlives the operator: a library's workspace."""

    @classmethod
    def exactly(
        cls, nbytes: int, name: str, *, is_taken_first: bool = False, is_kept: bool = False
    ) -> Scratch:
        """Return memory whose size is known."""
        return cls(nbytes, nbytes, nbytes, name, is_taken_first, is_kept)


ScratchRule = Callable[[Any, Sequence[Any], dict[str, Any], Any, int], Sequence[Scratch]]
"""Gives what an operator (``torch._ops.OpOverload``) takes besides its results, by its arguments,
its results and the number of the thread; asked once the operator has run."""


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
    """Give a reduced loss the memory of all elements: ``mse_loss`` of an image is as large as it.

    Such kernels make the result as large as that, and then say that it has one element
    (``aten/src/ATen/native/BinaryOps.cpp`` and ``Loss.cpp``, for the CPU and CUDA).
    """
    if func in _LOSSES and not result.dim():
        elements = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()
        result.untyped_storage().resize_(elements * result.element_size())
