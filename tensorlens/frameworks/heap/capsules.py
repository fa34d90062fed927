"""Where the memory lies that a DLPack capsule has to give."""

from __future__ import annotations

import ctypes
import datetime
from typing import Any

# dlpack.h: a tensor begins with its data; a versioned one after the version, two pointers, flags
_STARTS = {b"dltensor": 0, b"dltensor_versioned": 32}
_OFFSET = 40
"""Of ``byte_offset`` in a tensor: data, device, ndim, dtype, shape, strides come before."""

CAPSULE: type = type(datetime.datetime_CAPI)

_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def memory_of(capsule: Any) -> int | None:
    """Return the address of a capsule's memory; None once it was taken, or if it is another."""
    name = _name(capsule)
    start = _STARTS.get(name) if name is not None else None
    if start is None:
        return None
    place = _pointer(capsule, name) + start
    data = ctypes.c_uint64.from_address(place).value
    return int(data + ctypes.c_uint64.from_address(place + _OFFSET).value)
