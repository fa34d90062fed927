"""``copy.deepcopy`` of fake tensors, as that of real ones."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tensorlens.planning.patches import intercepted, patched


@contextlib.contextmanager
def copy_patches() -> Iterator[None]:
    """Let ``copy.deepcopy`` make of a fake tensor what it makes of a real one.

    By itself it copies the mode that the tensor belongs to as well, and every operator then takes
    the copy for a real tensor, with memory of its own.
    """
    with (
        patched(FakeTensorMode, "__deepcopy__", lambda mode, memo: mode),
        intercepted(_copied, (FakeTensor, "__deepcopy__")),
    ):
        yield


def _copied(original: Any, tensor: Any, memo: Any) -> Any:
    if not tensor.is_leaf or tensor.layout is not torch.strided:
        return original(tensor, memo)
    if id(tensor) not in memo:
        with torch.no_grad():
            memo[id(tensor)] = _copy(tensor, memo)
    return memo[id(tensor)]


def _copy(tensor: Any, memo: Any) -> Any:
    data = tensor.data.clone(memory_format=torch.preserve_format)
    if getattr(tensor, "_is_param", False):
        # without the gradient, as torch/nn/parameter.py
        return torch.nn.Parameter(data, tensor.requires_grad)
    data.requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        data.grad = copy.deepcopy(tensor.grad, memo)
    return data
