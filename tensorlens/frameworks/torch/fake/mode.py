"""Where torch's fake tensors take a CUDA device for one whose kernels could run."""

from __future__ import annotations

import copyreg
import sys
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def install() -> None:
    """Keep fake tensors from ever touching a device, and optimizers from telling them apart."""
    # a tensor is never made on the device itself, not even for a constant
    FakeTensorMode.avoid_device_init = property(lambda mode: True)
    fake_tensor.init_gpu_context = lambda device: None
    torch.utils.swap_tensors = _swap_tensors
    # inference goes through nested tensors there, which have no fake form
    torch.backends.mha.set_fastpath_enabled(False)
    # torch.optim takes the name of its module away
    supported: list[Any] = vars(sys.modules["torch.optim.optimizer"])["_foreach_supported_types"]
    if FakeTensor not in supported:
        supported.append(FakeTensor)


def _swap_tensors(one: Any, other: Any) -> None:
    """Swap the contents of two tensors, as ``torch.utils.swap_tensors`` does.

    It refuses tensors that a weak reference leads to, as one does to every fake tensor that was
    made of a real one. They go on leading to the same objects, which is all that is asked of them.
    """
    _swap_attribute(one, other, "__class__")
    _swap_attribute(one, other, "__dict__")
    for slot in copyreg._slotnames(type(one)):  # type: ignore[attr-defined]
        if hasattr(one, slot) and hasattr(other, slot):
            _swap_attribute(one, other, slot)
    torch._C._swap_tensor_impl(one, other)


def _swap_attribute(one: Any, other: Any, name: str) -> None:
    mine, theirs = getattr(one, name), getattr(other, name)
    setattr(one, name, theirs)
    setattr(other, name, mine)
