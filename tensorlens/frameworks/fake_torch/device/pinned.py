"""Pinned host memory of fake tensors: remembered, as there is no address to tell it by."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

_MARK = "tensorlens_is_pinned"


def install() -> None:
    """Let ``Tensor.pin_memory`` and ``Tensor.is_pinned`` do for fake tensors what they do."""
    pin, is_pinned = torch.Tensor.pin_memory, torch.Tensor.is_pinned

    def pin_memory(tensor: Any, device: Any = None) -> Any:
        if isinstance(tensor, FakeTensor) and _MARK in vars(tensor):
            return tensor
        result = pin(tensor)
        if isinstance(result, FakeTensor):
            vars(result)[_MARK] = True
        return result

    def is_pinned_now(tensor: Any, device: Any = None) -> Any:
        if isinstance(tensor, FakeTensor):
            return _MARK in vars(tensor)
        # a real tensor has an address, which a fake form of it would not have
        with _disable_current_modes():
            return is_pinned(tensor)

    torch.Tensor.pin_memory = pin_memory
    torch.Tensor.is_pinned = is_pinned_now
