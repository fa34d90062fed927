"""The columns of a scan, and the reader that fills them from Python where no native one can be had.

It gives what the native reader gives, but a storage object stays behind in Python for every tensor
that it reads, and a tensor takes tens of microseconds.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

import torch

REQUIRES_GRAD = 1
"""Autograd follows it: a leaf that asks for a gradient, or the result of a recorded operation."""
ODD = 2
"""Not a plain strided tensor with a storage: its parts have to be looked at one by one."""
META = 4
"""It has a shape and a type, but no memory anywhere."""


class Columns:
    """One entry a tensor, in the order in which the tensors were met.

    Sizes are bytes, but ``offset`` is in elements. ``device``, ``dtype``, ``shape`` and ``stride``
    number the lists ``devices``, ``dtypes``, ``shapes`` and ``shapes``; -1 is a stride that there
    is not. A shape that cannot be read without running code is ``()``, with 0 for ``nbytes``.
    """

    CODES = {  # noqa: RUF012 - it never changes
        "nbytes": "q",
        "storage": "Q",
        "storage_nbytes": "q",
        "offset": "q",
        "device": "h",
        "dtype": "h",
        "shape": "i",
        "stride": "i",
        "object": "Q",
        "impl": "Q",
        "grad": "i",
        "flags": "B",
        "first": "i",
    }
    """Column to its type code, as :mod:`array` spells them; the native reader has this order."""

    def __init__(self) -> None:
        for column, code in self.CODES.items():
            setattr(self, column, array(code))
        self.devices: list[str] = []
        self.dtypes: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.fakes = 0
        """How often a FakeTensor was met, and left out."""

    nbytes: array[int]
    """Elements times the size of one."""
    storage: array[int]
    """Address of the storage's first byte, or 0."""
    storage_nbytes: array[int]
    """Bytes of the storage; 0 where it has no address."""
    offset: array[int]
    device: array[int]
    dtype: array[int]
    shape: array[int]
    stride: array[int]
    object: array[int]
    """``id()`` of the tensor; 0 where no Python object is known."""
    impl: array[int]
    """Address of torch's own object, ``_cdata``."""
    grad: array[int]
    """Row of its gradient, or -1."""
    flags: array[int]
    """Sum of :data:`REQUIRES_GRAD`, :data:`ODD` and :data:`META`."""
    first: array[int]
    """First row with the same ``storage``; its own row where it has no address."""

    def __len__(self) -> int:
        return len(self.nbytes)


def fake_tensor() -> type | None:
    """Return torch's FakeTensor, or None while nobody has imported it."""
    kind = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", None)
    return kind if isinstance(kind, type) else None


def new_rows(length: int) -> array[int]:
    """Return as many rows, all -1."""
    return array("i", (-1,)) * length


_Base = torch._C.TensorBase
_UNDEFINED = 0
_WRAPPERS = ("Functionalize", "FuncTorchBatched", "FuncTorchGradWrapper")


class PythonReader:
    """Fills columns through the accessors of torch's base class, which no subclass replaces."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._rows: dict[int, int] = {}
        self._firsts: dict[int, int] = {}
        self._numbers: dict[tuple[str, Any], int] = {}
        self._kinds: dict[type, bool | None] = {}

    def add(self, tensors: Sequence[torch.Tensor]) -> array[int]:
        """See :meth:`Scan.add`."""
        fake = fake_tensor()
        rows = new_rows(len(tensors))
        # types made in between, and FakeTensor itself, may be new
        self._kinds.clear()
        with torch._C.DisableTorchFunction():
            for index, tensor in enumerate(tensors):
                is_fake = self._is_fake(type(tensor), fake)
                if is_fake:
                    self._columns.fakes += 1
                elif is_fake is not None:
                    rows[index] = self._add_tensor(tensor, fake)
        return rows

    def rows_of(self, ids: array[int]) -> array[int]:
        """See :meth:`Scan.rows_of`."""
        rows = {address: row for row, address in enumerate(self._columns.object) if address}
        return array("i", (rows.get(address, -1) for address in ids))

    def close(self) -> None:
        """Forget which tensors have rows."""
        self._rows.clear()
        self._firsts.clear()

    def _is_fake(self, kind: type, fake: type | None) -> bool | None:
        """Tell whether objects of this type are fake; None where they are no tensors."""
        if kind not in self._kinds:
            # issubclass() would ask the type's metaclass
            is_tensor = type.__subclasscheck__(_Base, kind)
            is_fake = fake is not None and type.__subclasscheck__(fake, kind)
            self._kinds[kind] = is_fake if is_tensor else None
        return self._kinds[kind]

    def _add_tensor(self, tensor: Any, fake: type | None) -> int:
        result = row = -1
        while True:
            known = len(self._columns)
            reached = self._add_row(tensor)
            if row < 0:
                result = reached
            else:
                self._columns.grad[row] = reached
            if reached != known:
                return result
            row, tensor = reached, _gradient(tensor)
            if tensor is None or self._is_fake(type(tensor), fake) is not False:
                return result

    def _add_row(self, tensor: Any) -> int:
        impl = _Base._cdata.__get__(tensor)
        keys = torch._C._dispatch_keys(tensor) if impl else None
        if keys is None or keys.raw_repr() == _UNDEFINED:
            return -1
        columns = self._columns
        row = self._rows.setdefault(impl, len(columns))
        if row < len(columns):
            return row
        storage = _storage(tensor)
        device = _device(tensor, storage, keys)
        columns.impl.append(impl)
        columns.object.append(id(tensor))
        columns.grad.append(-1)
        columns.device.append(self._number("device", columns.devices, device))
        dtype = str(_Base.dtype.__get__(tensor)).removeprefix("torch.")
        columns.dtype.append(self._number("dtype", columns.dtypes, dtype))
        self._add_extent(tensor, storage, keys, device == "meta")
        return row

    def _add_extent(self, tensor: Any, storage: Any, keys: Any, is_meta: bool) -> None:
        columns = self._columns
        address = 0 if is_meta or storage is None else _address(tensor, storage)
        is_shell = not address and keys.has(torch._C.DispatchKey.Python)
        is_strided = storage is not None and not is_shell and not _wraps(keys)
        is_hidden = is_shell or keys.has(torch._C.DispatchKey.Functionalize)
        shape = None if is_hidden else _lengths(_Base.shape.__get__, tensor)
        stride = _lengths(_Base.stride, tensor) if is_strided and shape is not None else None
        is_odd = stride is None
        row = len(columns)
        columns.shape.append(self._number("shape", columns.shapes, shape or ()))
        columns.stride.append(-1 if is_odd else self._number("shape", columns.shapes, stride))
        columns.offset.append(0 if is_odd else _Base.storage_offset(tensor))
        columns.storage.append(address)
        columns.storage_nbytes.append(storage.nbytes() if address else 0)
        columns.first.append(self._firsts.setdefault(address, row) if address else row)
        requires_grad = _Base.requires_grad.__get__(tensor)
        columns.flags.append(REQUIRES_GRAD * requires_grad + ODD * is_odd + META * is_meta)
        elements = 0 if shape is None else _Base.numel(tensor)
        columns.nbytes.append(elements * _Base.dtype.__get__(tensor).itemsize)

    def _number(self, kind: str, items: list[Any], item: Any) -> int:
        number = self._numbers.setdefault((kind, item), len(items))
        if number == len(items):
            items.append(item)
        return number


def _gradient(tensor: Any) -> Any:
    try:
        # torch warns of the gradient of any other tensor
        if _Base.is_leaf.__get__(tensor) or _Base.retains_grad.__get__(tensor):
            return _Base.grad.__get__(tensor)
    except Exception:
        return None
    return None


def _storage(tensor: Any) -> Any:
    try:
        return _Base.untyped_storage(tensor)
    except Exception:
        return None


def _device(tensor: Any, storage: Any, keys: Any) -> str:
    # a class that dispatches may have asked to be asked for its device
    asked = keys.has(torch._C.DispatchKey.Python) and storage is not None
    return str(storage.device if asked else _Base.device.__get__(tensor))


def _address(tensor: Any, storage: Any) -> int:
    try:
        if torch._C._is_cow_tensor(tensor):
            # asking the storage itself would make the copy that was put off
            start = _Base.storage_offset(tensor) * _Base.dtype.__get__(tensor).itemsize
            return int(_Base.const_data_ptr(tensor)) - start
        return int(storage.data_ptr())
    except Exception:
        # torch refuses for storages that have a size, but no memory
        return 0


def _wraps(keys: Any) -> bool:
    return any(keys.has(getattr(torch._C.DispatchKey, name)) for name in _WRAPPERS)


def _lengths(accessor: Any, tensor: Any) -> tuple[int, ...] | None:
    try:
        lengths = tuple(accessor(tensor))
    except Exception:
        return None
    return lengths if all(type(length) is int for length in lengths) else None
