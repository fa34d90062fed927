"""Operators of which only a run can tell what they give: run on the CPU, on zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import fake_impls, fake_tensor
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch

LARGEST = 1 << 28
"""Bytes of arguments beyond which nothing is run."""


def install(warn: Callable[[str], None]) -> None:
    """Run on the CPU what fake tensors would run on the device."""

    def run_on_zeros(mode: Any, func: Any, flat_args: Any, args_spec: Any, error: Any) -> Any:
        return _run_on_zeros(mode, func, flat_args, args_spec, error, warn)

    fake_tensor.run_fallback_kernel = run_on_zeros
    fake_impls.run_fallback_kernel = run_on_zeros


def _run_on_zeros(
    mode: Any,
    func: Any,
    flat_args: Any,
    args_spec: Any,
    error: Exception,
    warn: Callable[[str], None],
) -> Any:
    fakes = [each for each in flat_args if mode.is_our_fake(each)]
    if torch.Tag.inplace_view in func.tags:
        raise error
    if sum(fake.numel() * fake.element_size() for fake in fakes) > LARGEST:
        raise error
    device = next((fake.device for fake in fakes if fake.device.type != "cpu"), None)
    if device is not None:
        warn(f"{func} is not known on the GPU: its results were taken to be as on the CPU")
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
        storages = {
            each.untyped_storage()._cdata
            for each in real_args
            if isinstance(each, torch.Tensor) and each.layout == torch.strided
        }
        for each in pytree.tree_leaves(result):
            is_new = isinstance(each, torch.Tensor) and id(each) not in originals
            if is_new and each.layout == torch.strided:
                if each.untyped_storage()._cdata in storages:
                    # a view, of which nobody could tell of what
                    raise error
    return pytree.tree_map(fake, result)
