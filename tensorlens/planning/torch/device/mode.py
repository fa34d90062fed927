"""Makes fake tensors accept a CUDA device that has no kernels: modes and copies.

Also pinned memory, and the host in place of a device that cannot be put on stage.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes


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


def _is_in_kernel(mode: Any) -> bool:
    return getattr(_kernels, str(id(mode)), False)


def _set_in_kernel(mode: Any, value: bool) -> None:
    setattr(_kernels, str(id(mode)), value)


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


_MARK = "tensorlens_is_pinned"


def install_on_card() -> None:
    """Do the same for what only programs on a card do."""
    _install_pinning()
    # nn.DataParallel on one card asks C++ for it
    torch._C._scatter = _scatter


def _install_pinning() -> None:
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


def _scatter(
    tensor: Any, devices: Sequence[int], chunk_sizes: Any, dim: int, streams: Any
) -> list[Any]:
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(chunk_sizes)
    places = [torch.device("cuda", each) for each in devices]
    return [chunk.to(place) for chunk, place in zip(chunks, places, strict=False)]


_HOST = torch.device("cpu")
_QUIET = ("synchronize", "empty_cache", "set_device", "reset_peak_memory_stats", "manual_seed_all")
"""Functions of ``torch.cuda`` that have nothing to do."""


class HostMode(TorchFunctionMode):  # type: ignore[misc]
    """Lets a program put everything on the CPU that it means to put on ``cuda``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch with the CPU for any CUDA device."""
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        given = {name: _placed(value) for name, value in (kwargs or {}).items()}
        return func(*map(_placed, args), **given)


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Run a program with the CPU for any CUDA device."""
    answers: dict[str, Any] = {
        **dict.fromkeys(_QUIET, lambda *args, **kwargs: None),
        **{"is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0},
    }
    with mock.patch.multiple(torch.cuda, **answers), HostMode():
        yield


def _placed(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return _HOST
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return _HOST
    return value
