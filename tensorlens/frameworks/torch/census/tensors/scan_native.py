"""The reader of live tensors that is compiled against the installed torch."""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Sequence
from itertools import pairwise

import torch

from tensorlens.frameworks.host.allocator import copied, start
from tensorlens.frameworks.torch.census.tensors.columns import Columns, fake_tensor, new_rows
from tensorlens.frameworks.torch.native.build import TENSORS
from tensorlens.native.build import NativeUnavailable, Signatures, declare, load

_Address, _Number = ctypes.c_void_p, ctypes.c_int64
_Counts, _Starts = _Number * 5, _Address * (len(Columns.CODES) + 4)
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
def prepare() -> tuple[ctypes.PyDLL, int]:
    """Return the library, and where a Python tensor holds the address of torch's object.

    Raises:
        NativeUnavailable: it could not be built, or tensors are not laid out as expected.
    """
    library = load(TENSORS)
    declare(library, _SIGNATURES)
    return library, _offset()


class NativeReader:
    """Fills columns at a small part of a microsecond a tensor, and leaves nothing behind.

    Raises:
        NativeUnavailable: see :func:`prepare`.
    """

    def __init__(self, columns: Columns) -> None:
        self._library, offset = prepare()
        self._columns = columns
        self._scan: int | None = self._library.tl_scan_open(offset, torch._C.TensorBase)
        if self._scan is None:
            raise MemoryError

    def add(self, tensors: Sequence[torch.Tensor]) -> array[int]:
        """See :meth:`Scan.add`."""
        items = tensors if type(tensors) is list else list(tensors)
        fake = fake_tensor()
        rows = new_rows(len(items))
        fakes = self._library.tl_scan_add(
            self._open(), items, len(items), None if fake is None else id(fake), start(rows)
        )
        if fakes < 0:
            raise MemoryError
        self._columns.fakes += fakes
        self._copy()
        return rows

    def rows_of(self, ids: array[int]) -> array[int]:
        """See :meth:`Scan.rows_of`."""
        rows = new_rows(len(ids))
        if self._library.tl_scan_rows_of(self._open(), start(ids), len(ids), start(rows)):
            raise MemoryError
        return rows

    def close(self) -> None:
        """Release the native memory."""
        scan, self._scan = self._scan, None
        if scan is not None:
            self._library.tl_scan_close(scan)

    def __del__(self) -> None:
        if getattr(self, "_scan", None) is not None:
            self.close()

    def _open(self) -> int:
        if self._scan is None:
            raise ValueError("this scan was closed")
        return self._scan

    def _copy(self) -> None:
        """Append what is new to the columns and lists."""
        counts, starts = _Counts(), _Starts()
        scan, columns = self._scan, self._columns
        self._library.tl_scan_look(scan, ctypes.addressof(counts), ctypes.addressof(starts))
        rows, shapes, devices, dtypes, gradients = counts
        # an object may have become known for an earlier row
        del columns.object[:]
        for column, begin in zip(columns.CODES, starts, strict=False):
            _extend(getattr(columns, column), begin, rows)
        _extend(columns.owners, starts[-2], gradients)
        _extend(columns.gradients, starts[-1], gradients)
        for number in range(len(columns.devices), devices):
            columns.devices.append(self._library.tl_scan_device(scan, number).decode())
        for number in range(len(columns.dtypes), dtypes):
            columns.dtypes.append(self._library.tl_scan_dtype(scan, number).decode())
        if len(columns.shapes) < shapes:
            bounds, lengths = array("q"), array("q")
            _extend(bounds, starts[-4], shapes + 1)
            _extend(lengths, starts[-3], bounds[-1])
            columns.shapes[:] = [tuple(lengths[a:b]) for a, b in pairwise(bounds)]


def _extend(values: array[int], begin: int | None, length: int) -> None:
    """Append the native entries that are lacking."""
    known = len(values)
    # an empty vector may be nowhere
    if begin is not None and known < length:
        values.extend(copied(values.typecode, begin + known * values.itemsize, length - known))


def _offset() -> int:
    """Return the bytes from a tensor's Python object to the pointer to torch's.

    Raises:
        NativeUnavailable: it is at none of the places where any torch has had it.
    """
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        tensors = [torch.empty(0, device=device) for device in ("cpu", "meta", "cpu")]
    wanted = [torch._C.TensorBase._cdata.__get__(tensor) for tensor in tensors]
    # where the object's header ends, or after the flag of a MaybeOwned
    head = object.__basicsize__
    for offset in (head, head + 8):
        if offset + 8 <= torch._C.TensorBase.__basicsize__:
            addresses = [ctypes.c_uint64.from_address(id(each) + offset).value for each in tensors]
            if addresses == wanted:
                return offset
    raise NativeUnavailable(
        f"{TENSORS.label} is not in use: this torch lays out its tensors in another way"
    )
