"""Copies of tensors without data: they belong to the same run and have storages of their own."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tensorlens.planning.patches import patched


@contextlib.contextmanager
def copying() -> Iterator[None]:
    """Let ``copy.deepcopy`` and ``pickle`` make of a fake tensor what they make of a real one.

    By themselves they copy the mode that the tensor belongs to as well, and every operator then
    takes the copy for a real tensor, with memory of its own.
    """
    original = torch.Tensor.__deepcopy__

    def copied(tensor: Any, memo: Any) -> Any:
        if not tensor.is_leaf or tensor.layout is not torch.strided:
            return original(tensor, memo)
        known = memo.get(id(tensor))
        if known is None:
            with torch.no_grad():
                known = memo[id(tensor)] = _copy(tensor, memo)
        return known

    with (
        patched(FakeTensorMode, "__deepcopy__", lambda mode, memo: mode),
        patched(FakeTensor, "__deepcopy__", copied),
        patched(FakeTensor, "__reduce_ex__", _reduced),
    ):
        yield


def _copy(tensor: Any, memo: Any) -> Any:
    """Return a copy as ``torch/_tensor.py`` and ``torch/nn/parameter.py`` make it."""
    if getattr(tensor, "_is_param", False):
        # without the gradient
        data = tensor.data.clone(memory_format=torch.preserve_format)
        return torch.nn.Parameter(data, tensor.requires_grad)
    if _is_whole(tensor) and not _is_shared(tensor, memo):
        result = tensor.data.clone(memory_format=torch.preserve_format)
        memo[_storage_key(tensor)] = result
    else:
        result = _view_of(_storage_copy(tensor, memo), tensor)
    result.requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        result.grad = copy.deepcopy(tensor.grad, memo)
    return result


def _is_whole(tensor: Any) -> bool:
    size = tensor.numel() * tensor.element_size()
    return bool(tensor.is_contiguous() and tensor.untyped_storage().nbytes() == size)


def _storage_key(tensor: Any) -> tuple[str, int]:
    return "fake storage", tensor.untyped_storage()._cdata


def _is_shared(tensor: Any, memo: Any) -> bool:
    return _storage_key(tensor) in memo


def _storage_copy(tensor: Any, memo: Any) -> Any:
    """Return the copy of a whole storage, one for all tensors that share it."""
    known = memo.get(_storage_key(tensor))
    if known is None:
        nbytes = tensor.untyped_storage().nbytes()
        known = torch.empty(nbytes, dtype=torch.uint8, device=tensor.device)
        memo[_storage_key(tensor)] = known
    return known


def _view_of(storage: Any, tensor: Any) -> Any:
    """Return a view of a storage's whole copy that is laid out as a tensor is."""
    flat = storage.reshape(-1).view(torch.uint8)
    flat = flat[: flat.numel() // tensor.element_size() * tensor.element_size()]
    flat = flat.view(tensor.dtype)
    return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _reduced(tensor: Any, protocol: Any) -> Any:
    """Return how a tensor is pickled: its layout, and its value where that is known."""
    constant = tensor.constant
    value = None if constant is None else constant.tolist()
    kind = torch.nn.Parameter if getattr(tensor, "_is_param", False) else None
    layout = (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, str(tensor.device))
    return _rebuilt, (*layout, value, tensor.requires_grad, kind)


def _rebuilt(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: Any,
    device: str,
    value: Any,
    requires_grad: bool,
    kind: Any,
) -> Any:
    if value is None:
        result = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    else:
        result = torch.tensor(value, dtype=dtype, device=device)
    return result.requires_grad_(requires_grad) if kind is None else kind(result, requires_grad)
