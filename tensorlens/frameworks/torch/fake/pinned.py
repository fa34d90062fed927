"""Pinned host memory of fake tensors: remembered, as there is no address to tell it by."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_MARK = "tensorlens_is_pinned"


def install() -> None:
    """Let ``Tensor.pin_memory`` and ``Tensor.is_pinned`` do for fake tensors what they do."""
    pin, is_pinned = torch.Tensor.pin_memory, torch.Tensor.is_pinned

    def pin_memory(tensor: Any, device: Any = None) -> Any:
        if not isinstance(tensor, FakeTensor):
            return pin(tensor)
        if _MARK in vars(tensor):
            return tensor
        pinned = pin(tensor)
        vars(pinned)[_MARK] = True
        return pinned

    def is_pinned_now(tensor: Any, device: Any = None) -> Any:
        if isinstance(tensor, FakeTensor):
            return _MARK in vars(tensor)
        return is_pinned(tensor)

    torch.Tensor.pin_memory = pin_memory
    torch.Tensor.is_pinned = is_pinned_now
