"""The columns of a scan, and the reader that fills them from Python where no native one can be had.

It gives what the native reader gives, but for two things that Python is not told: the address of a
storage that is copied on write behind an empty view, and a gradient that was given to a tensor
before that became a result. A storage object stays behind in Python for every tensor that it reads,
and a tensor takes several microseconds.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

REQUIRES_GRAD = 1
"""Autograd follows it: a leaf that asks for a gradient, or the result of a recorded operation."""
ODD = 2
"""Not a plain strided tensor with a storage: its parts have to be looked at one by one."""
META = 4
"""It has a shape and a type, but no memory anywhere."""

LEAF = 8
"""A parameter, of no derived type, that autograd follows and that no operation made."""


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
        self.owners = array("i")
        """The rows that have a gradient, in order."""
        self.gradients = array("i")
        """The row of each one's gradient."""
        self.unseen = 0
        """How many rows no Python object is known of."""
        self.shares = False
        """Whether some rows have the same storage."""

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
    """Sum of :data:`REQUIRES_GRAD`, :data:`ODD`, :data:`META` and :data:`LEAF`.

    Where the native reader cannot tell it no row is a leaf."""
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
_WRAPPERS = ("FuncTorchBatched", "FuncTorchGradWrapper")


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
        with torch._C.DisableTorchFunction():
            for index, tensor in enumerate(tensors):
                is_fake = self._is_fake(type(tensor), fake)
                if is_fake:
                    self._columns.fakes += 1
                elif is_fake is not None:
                    rows[index] = self._add_tensor(tensor, fake)
        # they would keep types alive
        self._kinds.clear()
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
                self._set_gradient(row, reached)
            if reached != known:
                return result
            row, tensor = reached, _gradient(tensor)
            if tensor is None or self._is_fake(type(tensor), fake) is not False:
                return result

    def _set_gradient(self, row: int, gradient: int) -> None:
        if gradient >= 0:
            self._columns.grad[row] = gradient
            self._columns.owners.append(row)
            self._columns.gradients.append(gradient)

    def _add_row(self, tensor: Any) -> int:
        try:
            impl = _Base._cdata.__get__(tensor)
            if not impl or impl in self._rows:
                return self._rows.get(impl, -1)
            found = _facts(tensor)
        except Exception:
            # half made: it has neither a device nor a type
            return -1
        columns = self._columns
        row = self._rows[impl] = len(columns)
        columns.impl.append(impl)
        columns.object.append(id(tensor))
        columns.grad.append(-1)
        columns.device.append(self._number("device", columns.devices, found.device))
        columns.dtype.append(self._number("dtype", columns.dtypes, found.dtype))
        columns.shape.append(self._number("shape", columns.shapes, found.shape))
        stride = found.stride
        columns.stride.append(
            -1 if stride is None else self._number("shape", columns.shapes, stride)
        )
        columns.offset.append(found.offset)
        columns.storage.append(found.storage)
        columns.storage_nbytes.append(found.storage_nbytes)
        columns.flags.append(found.flags)
        columns.first.append(self._firsts.setdefault(found.storage, row) if found.storage else row)
        columns.shares |= columns.first[row] != row
        columns.nbytes.append(found.nbytes)
        return row

    def _number(self, kind: str, items: list[Any], item: Any) -> int:
        number = self._numbers.setdefault((kind, item), len(items))
        if number == len(items):
            items.append(item)
        return number


class _Facts(NamedTuple):
    device: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    offset: int
    storage: int
    storage_nbytes: int
    flags: int
    nbytes: int


def _facts(tensor: Any) -> _Facts:
    keys = torch._C._dispatch_keys(tensor)
    storage = _storage(tensor)
    device = _device(tensor, storage, keys)
    dtype = _Base.dtype.__get__(tensor)
    is_meta = device == "meta"
    address = 0 if is_meta or storage is None else _address(tensor, storage)
    is_shell = not address and keys.has(torch._C.DispatchKey.Python)
    is_hidden = is_shell or keys.has(torch._C.DispatchKey.Functionalize)
    is_strided = storage is not None and not is_hidden and not _wraps(keys)
    shape = None if is_hidden else _lengths(_Base.shape.__get__, tensor)
    stride = _lengths(_Base.stride, tensor) if is_strided and shape is not None else None
    is_odd = stride is None
    requires_grad = _Base.requires_grad.__get__(tensor)
    is_parameter = type(tensor) is torch.nn.Parameter
    is_leaf = requires_grad and is_parameter and _Base.is_leaf.__get__(tensor)
    return _Facts(
        device=device,
        dtype=str(dtype).removeprefix("torch."),
        shape=shape or (),
        stride=stride,
        offset=0 if is_odd else _Base.storage_offset(tensor),
        storage=address,
        storage_nbytes=storage.nbytes() if address else 0,
        flags=REQUIRES_GRAD * requires_grad + ODD * is_odd + META * is_meta + LEAF * is_leaf,
        nbytes=0 if shape is None else math.prod(shape) * dtype.itemsize,
    )


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
            data = int(_Base.const_data_ptr(tensor))
            start = int(_Base.storage_offset(tensor) * _Base.dtype.__get__(tensor).itemsize)
            return data - start if data else 0
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
