"""Fake tensors on a CUDA device without kernels: modes, moves, pinned memory, unknown operators."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch

from tensorlens.planning.torch.operators.cuda_kernels import register_cuda_kernels
from tensorlens.planning.trace import caution


def patch_fake_tensors() -> None:
    """Keep fake tensors off devices, and let optimizers treat them as real ones.

    This is for any device; :func:`patch_cuda` is for a card.
    """
    # no tensor is made on the device itself, not even for a constant
    FakeTensorMode.avoid_device_init = property(lambda mode: True)
    fake_tensor.init_gpu_context = lambda device: None
    FakeTensorMode.in_kernel_invocation = property(_is_in_kernel, _set_in_kernel)
    FakeTensorMode.dispatch = _one_at_a_time(FakeTensorMode.dispatch)
    torch.utils.swap_tensors = _set_contents
    torch.nn.Module._apply = _by_swapping(torch.nn.Module._apply)
    # it runs inference on nested tensors, which have no fake form
    torch.backends.mha.set_fastpath_enabled(False)
    # torch.optim deletes its attribute "optimizer"
    supported: list[Any] = vars(sys.modules["torch.optim.optimizer"])["_foreach_supported_types"]
    if FakeTensor not in supported:
        supported.append(FakeTensor)


_kernels = threading.local()
"""Whether this thread is in a kernel, by mode: torch has one flag for all threads."""


def _is_in_kernel(mode: Any) -> bool:
    return getattr(_kernels, str(id(mode)), False)


def _set_in_kernel(mode: Any, value: bool) -> None:
    setattr(_kernels, str(id(mode)), value)


def _one_at_a_time(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """Serialize the dispatch of all threads."""
    lock = threading.RLock()

    def dispatch_alone(mode: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            return dispatch(mode, *args, **kwargs)

    return dispatch_alone


def _by_swapping(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Let a module swap its parameters when it moves.

    Up to torch 2.7 it sets ``data``, which leaves the device of a fake tensor unchanged.
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


def _set_contents(tensor: Any, other: Any) -> None:
    """Set a fake parameter to the contents of another when its module moves.

    ``torch.utils.swap_tensors`` refuses tensors with weak references or graph nodes, as most have
    here. As a module does on a real device, set ``data`` instead.
    """
    if not (isinstance(tensor, FakeTensor) and isinstance(other, FakeTensor)):
        _swap(tensor, other)
        return
    tensor.data = other
    tensor.fake_device = other.fake_device
    tensor.constant = None


_MARK = "tensorlens_is_pinned"


def patch_cuda() -> None:
    """Patch what only CUDA programs call, and register the fake kernels of CUDA operators."""
    register_cuda_kernels()
    # in place of operators run on the device
    fake_tensor.run_fallback_kernel = _run_on_zeros
    fake_impls.run_fallback_kernel = _run_on_zeros
    # recurrent modules pack their weights
    torch._use_cudnn_rnn_flatten_weight = lambda: True
    # called by nn.DataParallel on one card
    torch._C._scatter = _scatter
    pin = torch.Tensor.pin_memory

    def pin_memory(tensor: Any, device: Any = None) -> Any:
        if is_pinned(tensor):
            return tensor
        result = pin(tensor)
        setattr(result.untyped_storage(), _MARK, True)
        return result

    def is_pinned(tensor: Any, device: Any = None) -> bool:
        return tensor.layout is torch.strided and hasattr(tensor.untyped_storage(), _MARK)

    torch.Tensor.pin_memory, torch.Tensor.is_pinned = pin_memory, is_pinned


def _scatter(
    tensor: Any, devices: Sequence[int], chunk_sizes: Any, dim: int, streams: Any
) -> list[Any]:
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(chunk_sizes)
    places = [torch.device("cuda", each) for each in devices]
    return [chunk.to(place) for chunk, place in zip(chunks, places, strict=False)]


_MAX_BYTES = 1 << 28
"""Most bytes of arguments with which an operator is run."""


def _run_on_zeros(mode: Any, func: Any, flat_args: Any, args_spec: Any, error: Exception) -> Any:
    """Run an operator on the CPU, on zeros, to learn its results."""
    fakes = [each for each in flat_args if mode.is_our_fake(each)]
    if torch.Tag.inplace_view in func.tags:
        raise error
    if sum(fake.numel() * fake.element_size() for fake in fakes) > _MAX_BYTES:
        raise error
    device = next((fake.device for fake in fakes if fake.device.type != "cpu"), None)
    if device is not None:
        caution(f"{func} is not known on the GPU: its results were taken to be as on the CPU")
    originals: dict[int, Any] = {}

    def real(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not mode.is_our_fake(value):
            return value
        zeros = torch.zeros_like(value, device="cpu")
        if value.is_sparse:
            zeros._coalesced_(value.is_coalesced())
        originals[id(zeros)] = value
        return zeros

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in originals:
            return originals[id(value)]
        made = mode.fake_tensor_converter.from_real_tensor(mode, value)
        if device is not None:
            made.fake_device = device
        return made

    with no_dispatch():
        real_args = [real(each) for each in flat_args]
        args, kwargs = pytree.tree_unflatten(real_args, args_spec)
        result = func(*args, **kwargs)
    return pytree.tree_map(fake, result)
