"""Columns of live tensors, and the native reader of these; runs no code of the tensors."""

from __future__ import annotations

import ctypes
import functools
import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise

import torch

from tensorlens.frameworks.host.allocator import copied, start
from tensorlens.frameworks.torch.native import TENSORS
from tensorlens.native.build import NativeUnavailable, Signatures, declare, load

REQUIRES_GRAD = 1
"""A leaf that requires a gradient, or a result of an operation that autograd recorded."""
IRREGULAR = 2
"""No plain strided tensor with a storage: its parts must be examined one by one."""


class Scan:
    """Columns with one row for each tensor, in the order of addition; refers to no tensor.

    The caller keeps tensors alive as long as it adds more, since a tensor is identified by its
    address. Not safe for use by several threads at once.

    Sizes are bytes, but ``offset`` is in elements. ``device``, ``dtype``, ``shape`` and ``stride``
    are indices into the lists ``devices``, ``dtypes``, ``shapes`` and ``shapes``; -1 is no stride.
    A shape that cannot be read without running code is ``()``, with 0 for ``nbytes``.
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
        "flags": "B",
        "first": "i",
    }
    """Column to its type code of :mod:`array`, in the native reader's order."""

    def __init__(self) -> None:
        for column, code in self.CODES.items():
            setattr(self, column, array(code))
        self.devices: list[str] = []
        self.dtypes: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.fakes = 0
        """Number of FakeTensors that were left out."""
        self.owners = array("i")
        """Rows of the tensors that have a gradient, in order."""
        self.gradients = array("i")
        """Row of the gradient of each."""

    nbytes: array[int]
    """Number of elements times the size of one."""
    storage: array[int]
    """Address of the storage's first byte, or 0."""
    storage_nbytes: array[int]
    """Bytes of the storage; 0 if it has no address."""
    offset: array[int]
    device: array[int]
    dtype: array[int]
    shape: array[int]
    stride: array[int]
    object: array[int]
    """``id()`` of the tensor; 0 if no Python object is known."""
    flags: array[int]
    """Sum of :data:`REQUIRES_GRAD` and :data:`IRREGULAR`."""
    first: array[int]
    """First row with the same ``storage``; its own row if it has no address."""

    def __len__(self) -> int:
        return len(self.nbytes)

    @property
    def shares(self) -> bool:
        """Whether some rows have the same storage."""
        return self.first != array("i", range(len(self)))

    def add(self, tensors: Sequence[torch.Tensor]) -> array[int]:
        """Return the row of each; -1 for FakeTensors, other objects, and unfinished tensors.

        A tensor that was added before keeps its row. A gradient gets a row of its own, even if it
        has no Python object yet.

        Raises:
            MemoryError: no memory is left.
        """
        raise NotImplementedError

    def rows_of(self, ids: array[int]) -> array[int]:
        """Return the row of each of these ``id()`` (type code ``Q``), or -1.

        Raises:
            MemoryError: no memory is left.
        """
        raise NotImplementedError


def fake_tensor() -> type | None:
    """Return torch's FakeTensor; None if it was not imported."""
    kind = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", None)
    return kind if isinstance(kind, type) else None


def new_rows(length: int) -> array[int]:
    """Return a column of row numbers, all -1."""
    return array("i", (-1,)) * length


_Address, _Number = ctypes.c_void_p, ctypes.c_int64
_CountsArray, _StartsArray = _Number * 5, _Address * (len(Scan.CODES) + 4)
_SIGNATURES: Signatures = {
    "tl_scan_open": (_Address, (_Number, ctypes.py_object)),
    "tl_scan_close": (None, (_Address,)),
    "tl_scan_add": (_Number, (_Address, ctypes.py_object, _Number, _Address, _Address)),
    "tl_scan_rows_of": (_Number, (_Address, _Address, _Number, _Address)),
    "tl_scan_look": (None, (_Address, _Address, _Address)),
    "tl_scan_device": (ctypes.c_char_p, (_Address, _Number)),
    "tl_scan_dtype": (ctypes.c_char_p, (_Address, _Number)),
}


@functools.cache
def _library_and_offset() -> tuple[ctypes.PyDLL, int]:
    """Return the library, and the offset of torch's object in a Python tensor.

    Raises:
        NativeUnavailable: it could not be built, or tensors are not laid out as expected.
    """
    library = load(TENSORS)
    declare(library, _SIGNATURES)
    return library, _offset()


class NativeScan(Scan):
    """A scan by native code, at 0.2 microseconds a tensor; creates no Python objects.

    Raises:
        NativeUnavailable: the native part could not be built, or does not know these tensors.
    """

    def __init__(self) -> None:
        self._scan: int | None = None
        super().__init__()
        self._library, offset = _library_and_offset()
        self._scan = self._library.tl_scan_open(offset, torch._C.TensorBase)
        if self._scan is None:
            raise MemoryError

    def add(self, tensors: Sequence[torch.Tensor]) -> array[int]:
        """Return the row of each, or -1."""
        items = tensors if type(tensors) is list else list(tensors)
        fake = fake_tensor()
        rows = new_rows(len(items))
        fakes = self._library.tl_scan_add(
            self._scan, items, len(items), None if fake is None else id(fake), start(rows)
        )
        if fakes < 0:
            raise MemoryError
        self.fakes += fakes
        self._copy_new()
        return rows

    def rows_of(self, ids: array[int]) -> array[int]:
        """Return the row of each of these ``id()``, or -1."""
        rows = new_rows(len(ids))
        if self._library.tl_scan_rows_of(self._scan, start(ids), len(ids), start(rows)):
            raise MemoryError
        return rows

    def __del__(self) -> None:
        if self._scan is not None:
            self._library.tl_scan_close(self._scan)

    def _copy_new(self) -> None:
        """Append new rows to the columns and lists."""
        counts, starts = _CountsArray(), _StartsArray()
        scan = self._scan
        self._library.tl_scan_look(scan, ctypes.addressof(counts), ctypes.addressof(starts))
        rows, shapes, devices, dtypes, gradients = counts
        # the Python object of an earlier row may be known by now
        del self.object[:]
        for column, begin in zip(self.CODES, starts, strict=False):
            _append_new(getattr(self, column), begin, rows)
        _append_new(self.owners, starts[-2], gradients)
        _append_new(self.gradients, starts[-1], gradients)
        for number in range(len(self.devices), devices):
            self.devices.append(self._library.tl_scan_device(scan, number).decode())
        for number in range(len(self.dtypes), dtypes):
            self.dtypes.append(self._library.tl_scan_dtype(scan, number).decode())
        if len(self.shapes) < shapes:
            bounds, lengths = array("q"), array("q")
            _append_new(bounds, starts[-4], shapes + 1)
            _append_new(lengths, starts[-3], bounds[-1])
            self.shapes[:] = [tuple(lengths[a:b]) for a, b in pairwise(bounds)]


def _append_new(values: array[int], begin: int | None, length: int) -> None:
    """Append the native entries that a column does not have yet."""
    known = len(values)
    # an empty vector may have no address
    if begin is not None and known < length:
        values.extend(copied(values.typecode, begin + known * values.itemsize, length - known))


def _offset() -> int:
    """Return the offset in a tensor's Python object of the pointer to torch's object.

    Raises:
        NativeUnavailable: it is at none of the offsets of known releases.
    """
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        tensors = [torch.empty(0, device=device) for device in ("cpu", "meta", "cpu")]
    wanted = [torch._C.TensorBase._cdata.__get__(tensor) for tensor in tensors]
    # behind the object's header, or behind the flag of a MaybeOwned
    head = object.__basicsize__
    for offset in (head, head + 8):
        if offset + 8 <= torch._C.TensorBase.__basicsize__:
            addresses = [ctypes.c_uint64.from_address(id(each) + offset).value for each in tensors]
            if addresses == wanted:
                return offset
    raise NativeUnavailable(
        f"{TENSORS.label} is not in use: this torch lays out its tensors in another way"
    )


_reason: str | None = None


def fallback_reason() -> str | None:
    """Return why tensors are read by Python code, in one line; None if they are not."""
    return _reason


def open_scan() -> Scan:
    """Return a new scan: a native one if possible."""
    global _reason
    # do not run a compiler again that failed once
    if _reason is None:
        try:
            return NativeScan()
        except NativeUnavailable as error:
            _reason = str(error)
    from tensorlens.frameworks.torch.census.scan_python import PythonScan

    return PythonScan()
