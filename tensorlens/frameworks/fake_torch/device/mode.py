"""Where torch's fake tensors take a CUDA device for one whose kernels could run."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def install() -> None:
    """Keep fake tensors from ever touching a device, and optimizers from telling them apart."""
    # a tensor is never made on the device itself, not even for a constant
    FakeTensorMode.avoid_device_init = property(lambda mode: True)
    fake_tensor.init_gpu_context = lambda device: None
    FakeTensorMode.in_kernel_invocation = property(_is_in_kernel, _set_in_kernel)
    FakeTensorMode.dispatch = _one_at_a_time(FakeTensorMode.dispatch)
    torch.utils.swap_tensors = _take_over
    torch.nn.Module._apply = _by_swapping(torch.nn.Module._apply)
    # inference goes through nested tensors there, which have no fake form
    torch.backends.mha.set_fastpath_enabled(False)
    # torch.optim takes the name of its module away
    supported: list[Any] = vars(sys.modules["torch.optim.optimizer"])["_foreach_supported_types"]
    if FakeTensor not in supported:
        supported.append(FakeTensor)


_kernels = threading.local()
"""For each mode whether this thread is in one of its kernels.

All threads of a program share the mode, in which torch keeps a single answer.
"""


def _inside() -> dict[Any, Any]:
    return vars(_kernels)


def _is_in_kernel(mode: Any) -> bool:
    return id(mode) in _inside()


def _set_in_kernel(mode: Any, value: bool) -> None:
    if value:
        _inside()[id(mode)] = True
    else:
        _inside().pop(id(mode), None)


def _one_at_a_time(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    lock = threading.RLock()

    def dispatch_alone(mode: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            return dispatch(mode, *args, **kwargs)

    return dispatch_alone


def _by_swapping(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Let a module that moves swap its parameters: up to torch 2.7 it sets ``data``.

    That leaves the device of a fake tensor as it was.
    """

    @functools.wraps(apply)
    def apply_and_swap(*args: Any, **kwargs: Any) -> Any:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(*args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return apply_and_swap


_swap = torch.utils.swap_tensors


def _take_over(tensor: Any, other: Any) -> None:
    """Give a fake tensor the contents of another, where a module moves its parameters.

    ``torch.utils.swap_tensors`` refuses tensors that a weak reference or the graph leads to, which
    is most of them here. A module on a real device sets ``data`` instead, so this does.
    """
    if not (isinstance(tensor, FakeTensor) and isinstance(other, FakeTensor)):
        _swap(tensor, other)
        return
    tensor.data = other
    tensor.fake_device = other.fake_device
    tensor.constant = None
