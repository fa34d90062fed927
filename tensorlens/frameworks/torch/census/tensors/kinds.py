"""Tensors without a plain storage, taken apart into those of their parts that have one."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tensorlens.frameworks.torch.census.names.modules import instance_dict
from tensorlens.heap.attributes import class_name, mro, vars_of_type

_base = torch._C.TensorBase


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A tensor that holds some or all of another's memory."""

    name: str
    """Of the part: ``indices``; empty where it is the whole content."""
    tensor: Any
    note: str


def parts_of(tensor: Any) -> list[TensorPart]:
    """Return the parts of a tensor that has no plain storage; empty where it has none to show.

    Nothing of a subclass is run: its inner tensors are read from its ``__dict__`` and its slots.
    """
    with torch._C.DisableTorchFunctionSubclass():
        try:
            layout = _base.layout.__get__(tensor)
            if layout in _SPARSE:
                name, shape = str(layout).removeprefix("torch."), tuple(_base.size(tensor))
                note = f"part of a {name} tensor {shape}"
                getters = _SPARSE[layout].items()
                return [TensorPart(part, getter(tensor), note) for part, getter in getters]
            return _inner(tensor)
        except Exception:
            return []


def _inner(tensor: Any) -> list[TensorPart]:
    kind = class_name(tensor)
    inner = [
        (name, item)
        for name, item in (*_slots(tensor), *dict.items(instance_dict(tensor) or {}))
        if type(name) is str and issubclass(type(item), torch.Tensor) and item is not tensor
    ]
    if kind == "DTensor":
        shape = tuple(_base.size(tensor))
        note = f"local part of a DTensor {shape}"
        return [TensorPart("", item, note) for name, item in inner if name == "_local_tensor"]
    if len(inner) == 1:
        return [TensorPart("", inner[0][1], f"inside a {kind}")]
    return [TensorPart(name, item, f"part of a {kind}") for name, item in inner]


def _slots(tensor: Any) -> Iterator[tuple[str, Any]]:
    """Give the ``__slots__`` that are filled: a DTensor keeps its local part in one."""
    for kind in mro(type(tensor)):
        if kind is torch.Tensor:
            return
        for name, member in vars_of_type(kind).items():
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
