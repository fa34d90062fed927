"""Reader of live tensors without native code: ten microseconds a tensor.

torch keeps a Python object of the storage of every tensor that it reads.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import torch

from tensorlens.frameworks.torch.census.scan import (
    IRREGULAR,
    REQUIRES_GRAD,
    Scan,
    fake_tensor,
    new_rows,
)

_base = torch._C.TensorBase
_WRAPPERS = ("FuncTorchBatched", "FuncTorchGradWrapper")


class PythonScan(Scan):
    """A scan by accessors of torch's base class, which no subclass overrides."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[int, int] = {}
        self._firsts: dict[int, int] = {}
        self._numbers: dict[tuple[str, Any], int] = {}

    def add(self, tensors: Sequence[torch.Tensor]) -> array[int]:
        """Return the row of each, or -1."""
        rows = new_rows(len(tensors))
        with torch._C.DisableTorchFunction():
            for index, tensor in enumerate(tensors):
                rows[index] = self._add_tensor(tensor)
        return rows

    def rows_of(self, ids: array[int]) -> array[int]:
        """Return the row of each of these ``id()``, or -1."""
        rows = {address: row for row, address in enumerate(self.object) if address}
        return array("i", (rows.get(address, -1) for address in ids))

    def _add_tensor(self, tensor: Any) -> int:
        """Add a tensor, its gradient, the gradient's gradient and so on; return its row."""
        fake = fake_tensor()
        first = owner = -1
        # issubclass() would run code of the metaclass
        while type.__subclasscheck__(_base, type(tensor)):
            if fake is not None and type.__subclasscheck__(fake, type(tensor)):
                self.fakes += owner < 0
                break
            known = len(self)
            row = self._add_row(tensor)
            if owner < 0:
                first = row
            elif row >= 0:
                self.owners.append(owner)
                self.gradients.append(row)
            if row != known:
                break
            owner, tensor = row, _gradient(tensor)
        return first

    def _add_row(self, tensor: Any) -> int:
        try:
            impl = _base._cdata.__get__(tensor)
            if not impl or impl in self._rows:
                return self._rows.get(impl, -1)
            facts = self._facts(tensor)
        except Exception:
            # a tensor that is still being constructed has neither a device nor a type
            return -1
        row = self._rows[impl] = len(self)
        storage = facts["storage"]
        facts["first"] = self._firsts.setdefault(storage, row) if storage else row
        for column, value in facts.items():
            getattr(self, column).append(value)
        return row

    def _facts(self, tensor: Any) -> dict[str, int]:
        keys = torch._C._dispatch_keys(tensor)
        storage = _storage(tensor)
        is_dispatched = keys.has(torch._C.DispatchKey.Python)
        # a class that dispatches may report a device of its own
        asked = is_dispatched and storage is not None
        device = str(storage.device if asked else _base.device.__get__(tensor))
        address = 0 if device == "meta" or storage is None else _address(tensor, storage)
        wraps = any(keys.has(getattr(torch._C.DispatchKey, name)) for name in _WRAPPERS)
        is_hidden = keys.has(torch._C.DispatchKey.Functionalize) or (is_dispatched and not address)
        dtype = _base.dtype.__get__(tensor)
        shape = None if is_hidden else _lengths(_base.shape.__get__, tensor)
        is_irregular = storage is None or is_hidden or wraps or shape is None
        stride = None if is_irregular else _lengths(_base.stride, tensor)
        requires_grad = _base.requires_grad.__get__(tensor)
        return {
            "object": id(tensor),
            "device": self._number("device", device),
            "dtype": self._number("dtype", str(dtype).removeprefix("torch.")),
            "shape": self._number("shape", shape or ()),
            "stride": -1 if stride is None else self._number("shape", stride),
            "offset": 0 if stride is None else _base.storage_offset(tensor),
            "storage": address,
            "storage_nbytes": storage.nbytes() if address else 0,
            "flags": REQUIRES_GRAD * requires_grad + IRREGULAR * (stride is None),
            "nbytes": 0 if shape is None else math.prod(shape) * dtype.itemsize,
        }

    def _number(self, kind: str, item: Any) -> int:
        items = getattr(self, f"{kind}s")
        number = self._numbers.setdefault((kind, item), len(items))
        if number == len(items):
            items.append(item)
        return number


def _gradient(tensor: Any) -> Any:
    try:
        # for any other tensor torch warns
        if _base.is_leaf.__get__(tensor) or _base.retains_grad.__get__(tensor):
            return _base.grad.__get__(tensor)
    except Exception:
        return None
    return None


def _storage(tensor: Any) -> Any:
    try:
        return _base.untyped_storage(tensor)
    except Exception:
        return None


def _address(tensor: Any, storage: Any) -> int:
    try:
        if torch._C._is_cow_tensor(tensor):
            # storage.data_ptr() would make the deferred copy
            start = _base.storage_offset(tensor) * _base.dtype.__get__(tensor).itemsize
            return max(0, int(_base.const_data_ptr(tensor)) - int(start))
        return int(storage.data_ptr())
    except Exception:
        # the storage has a size, but no memory
        return 0


def _lengths(accessor: Any, tensor: Any) -> tuple[int, ...] | None:
    try:
        lengths = tuple(accessor(tensor))
    except Exception:
        return None
    return lengths if all(type(length) is int for length in lengths) else None
