"""Tensors without a plain storage, taken apart into those of their parts that have one."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tensorlens.frameworks.torch.census.names.modules import class_name, content_of

_base = torch._C.TensorBase


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor that holds some or all of another's memory."""

    name: str
    """Of the part: ``indices``; empty where it is the whole content."""
    tensor: Any
    note: str


def parts_of(tensor: Any) -> list[Part]:
    """Return the parts of a tensor that has no plain storage; empty where it has none to show.

    Nothing of a subclass is run: its inner tensors are read from its ``__dict__`` and its slots.
    """
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return _parts(tensor)
        except Exception:
            return []


def _parts(tensor: Any) -> list[Part]:
    layout = _base.layout.__get__(tensor)
    if layout in _SPARSE:
        shape = tuple(_base.size(tensor))
        note = f"part of a {str(layout).removeprefix('torch.')} tensor {shape}"
        return [Part(name, getter(tensor), note) for name, getter in _SPARSE[layout].items()]
    inner = _inner(tensor)
    if inner:
        return inner
    if _base.is_nested.__get__(tensor):
        note = "sizes of a nested tensor"
        names = ("_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")
        return [Part(name, getattr(_base, name)(tensor), note) for name in names]
    functorch = sys.modules.get("torch._C._functorch") or torch._C._functorch
    if functorch.is_functorch_wrapped_tensor(tensor):
        return [Part("", functorch.get_unwrapped(tensor), "inside a functorch transform")]
    return []


def quantizer_parts(tensor: Any) -> list[Part]:
    """Return the scales and zero points of a tensor quantized per channel."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            if not _base.is_quantized.__get__(tensor):
                return []
            if _base.qscheme(tensor) not in _PER_CHANNEL:
                return []
            note = "part of a quantized tensor"
            return [
                Part("scales", _base.q_per_channel_scales(tensor), note),
                Part("zero_points", _base.q_per_channel_zero_points(tensor), note),
            ]
    except Exception:
        return []


def mkldnn_block(tensor: Any) -> tuple[int, int] | None:
    """Return address and bytes of a oneDNN tensor's memory; None for any other tensor."""
    try:
        if _base.layout.__get__(tensor) is not torch._mkldnn:
            return None
        operators = torch.ops.mkldnn
        return int(operators.data_ptr(tensor)), int(operators._nbytes(tensor))
    except Exception:
        return None


def _inner(tensor: Any) -> list[Part]:
    kind = class_name(tensor)
    found = [
        (name, item)
        for name, item in (*_slots(tensor), *dict.items(content_of(tensor) or {}))
        if type(name) is str and issubclass(type(item), torch.Tensor) and item is not tensor
    ]
    if kind == "DTensor":
        shape = tuple(_base.size(tensor))
        note = f"local part of a DTensor {shape}"
        return [Part("", item, note) for name, item in found if name == "_local_tensor"]
    if len(found) == 1:
        return [Part("", found[0][1], f"inside a {kind}")]
    return [Part(name, item, f"part of a {kind}") for name, item in found]


def _slots(tensor: Any) -> Iterator[tuple[str, Any]]:
    """Give the ``__slots__`` that are filled: a DTensor keeps its local part in one."""
    for kind in type.__dict__["__mro__"].__get__(type(tensor)):
        if kind is torch.Tensor:
            return
        for name, member in type.__dict__["__dict__"].__get__(kind).items():
            if type(member) is types.MemberDescriptorType:
                try:
                    yield name, member.__get__(tensor)
                except AttributeError:
                    # nothing is in it
                    continue


def _getters(*names: str) -> dict[str, Callable[[Any], Any]]:
    return {name.strip("_"): getattr(_base, name) for name in names}


_COMPRESSED_ROWS = _getters("crow_indices", "col_indices", "values")
_COMPRESSED_COLUMNS = _getters("ccol_indices", "row_indices", "values")
_SPARSE: dict[Any, dict[str, Callable[[Any], Any]]] = {
    torch.sparse_coo: _getters("_indices", "_values"),
    torch.sparse_csr: _COMPRESSED_ROWS,
    torch.sparse_bsr: _COMPRESSED_ROWS,
    torch.sparse_csc: _COMPRESSED_COLUMNS,
    torch.sparse_bsc: _COMPRESSED_COLUMNS,
}
_PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)
