"""Copies of tensors without data: they belong to the same run, and parameters stay parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tensorlens.frameworks.torch.fake.surroundings.patches import patched


@contextlib.contextmanager
def copying() -> Iterator[None]:
    """Let ``copy.deepcopy`` make of a fake parameter what it makes of a real one.

    By itself it copies the mode that the tensor belongs to as well, and every operator then takes
    the copy for a real tensor, with memory of its own.
    """
    original = torch.Tensor.__deepcopy__

    def copied(tensor: Any, memo: Any) -> Any:
        if not getattr(tensor, "_is_param", False):
            return original(tensor, memo)
        known = memo.get(id(tensor))
        if known is None:
            # as torch/nn/parameter.py has it: without the gradient
            data = tensor.data.clone(memory_format=torch.preserve_format)
            known = memo[id(tensor)] = torch.nn.Parameter(data, tensor.requires_grad)
        return known

    with (
        patched(FakeTensorMode, "__deepcopy__", lambda mode, memo: mode),
        patched(FakeTensor, "__deepcopy__", copied),
    ):
        yield
