"""Reads eager tensors and the addresses of their buffers, without running an operation."""

from __future__ import annotations

import ctypes
import functools
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import dtypes

from tensorlens.frameworks.host.allocator import start
from tensorlens.frameworks.tensorflow.cpu import TAP
from tensorlens.frameworks.tensorflow.sizes import OBJECTS, nbytes
from tensorlens.native.build import SOURCES, NativePart, NativeUnavailable, declare, load

_LABEL = "the native reader of TensorFlow's tensors"
_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
_BINDINGS = "lib_pywrap_tensorflow_common.so"


def _arguments() -> Sequence[str]:
    bindings = Path(tf.sysconfig.get_lib()) / "python"
    return [*TAP.arguments(), f"-L{bindings}", f"-Wl,-rpath,{bindings}"]


READER = NativePart(
    "reader",
    _LABEL,
    SOURCES / "tensorflow" / "reader.cpp",
    libraries=tuple(f"-l:{name}" for name in (*_LIBRARIES, _BINDINGS)),
    arguments=_arguments,
    release=TAP.release,
    depends_on=TAP.depends_on,
)


class FactKind(IntEnum):
    """The subject of a fact."""

    TENSOR = 0
    VARIABLE = 1
    """The value of a variable."""
    UNREAD = 2
    """A tensor that could not be read."""


_MAX_DIMENSIONS = 8
_ROW = struct.Struct(f"=5qQqQ2q{_MAX_DIMENSIONS}q")


@dataclass(frozen=True, slots=True)
class Fact:
    """A tensor, or the value of the variable whose handle it is; sizes in bytes."""

    kind: FactKind
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    address: int
    """Address of the buffer; 0 if there is none or it is unknown."""
    buffer_nbytes: int
    offset: int = 0
    """Offset of the tensor in the buffer."""
    owned: bool = False
    """Whether the buffer is TensorFlow's own, not that of NumPy or another library."""
    tensor_index: int = -1
    """Index of the tensor among those that were read."""
    handle_fact: int = -1
    """Index of the handle's fact, for a variable's value."""


@functools.cache
def _native() -> ctypes.PyDLL | str:
    """Return the native reader, or the reason why there is none."""
    try:
        library = load(READER)
    except NativeUnavailable as error:
        return str(error)
    number, address = ctypes.c_int64, ctypes.c_void_p
    declare(library, {"tl_tf_read": (number, (address, number, address))})
    return library


def fallback_reason() -> str | None:
    """Return why tensors are read from Python; None if they are read natively."""
    found = _native()
    return f"{found}; variables are counted by their shapes" if isinstance(found, str) else None


def read_tensors(tensors: Sequence[Any]) -> list[Fact]:
    """Return a fact for each tensor; after a handle's fact comes that of its variable's value."""
    library = _native()
    if isinstance(library, str):
        return read_in_python(tensors)
    addresses = array("Q", map(id, tensors))
    rows = array("q", bytes(2 * len(tensors) * _ROW.size))
    count = library.tl_tf_read(start(addresses), len(tensors), start(rows))
    read = _ROW.iter_unpack(memoryview(rows).cast("B")[: count * _ROW.size])
    return [_fact(row, tensors[row[1]]) for row in read]


def read_in_python(tensors: Sequence[Any]) -> list[Fact]:
    """Return the same facts as far as Python can tell: no addresses of variables and resources."""
    facts: list[Fact] = []
    for index, tensor in enumerate(tensors):
        facts.append(read_tensor(tensor, index))
        value = _value(tensor, index, len(facts) - 1)
        if value is not None:
            facts.append(value)
    return facts


def _fact(row: tuple[int, ...], tensor: Any) -> Fact:
    handle_fact, index, kind, dtype, size, address, buffer_nbytes, data, owned, rank = row[:10]
    if size == 0 and buffer_nbytes == 0:
        address = data = 0
    shape = row[10 : 10 + rank]
    if rank > _MAX_DIMENSIONS:
        is_value = kind == FactKind.VARIABLE
        in_python = _value(tensor, index, handle_fact) if is_value else read_tensor(tensor)
        shape = () if in_python is None else in_python.shape
    return Fact(
        kind=FactKind(kind),
        dtype=_dtype(dtype),
        shape=shape,
        nbytes=size,
        address=address,
        buffer_nbytes=buffer_nbytes,
        offset=data - address if address else 0,
        owned=bool(owned),
        tensor_index=index,
        handle_fact=handle_fact,
    )


def _dtype(number: int) -> str:
    try:
        return str(dtypes.as_dtype(number).name)
    except TypeError:
        return "unknown"


def read_tensor(tensor: Any, index: int = 0) -> Fact:
    """Return a tensor's fact as far as Python can tell: an address only for numeric CPU tensors."""
    kind, size, address, dtype, shape = FactKind.UNREAD, 0, 0, "unknown", ()
    try:
        dtype, shape = str(tensor.dtype.name), tuple(tensor._shape_tuple())
        kind = FactKind.TENSOR
        size = nbytes(shape, dtype)
        if size and dtype not in OBJECTS and "CPU" in tensor.backing_device:
            # an array that shares the memory, dropped at once
            interface = tensor._numpy().__array_interface__
            address = int(interface["data"][0])
    except Exception:
        kind = FactKind.UNREAD
    return Fact(kind, dtype, shape, size, address, size, tensor_index=index)


def _value(tensor: Any, index: int, handle_fact: int) -> Fact | None:
    """Return what a handle tells of its variable; None for any other tensor."""
    try:
        known = getattr(tensor, "_handle_data", None)
        if known is None or not known.is_set or len(known.shape_and_type) != 1:
            return None
        (entry,) = known.shape_and_type
        dtype, shape = _dtype(entry.dtype), tuple(each.size for each in entry.shape.dim)
        size = nbytes(shape, dtype)
    except Exception:
        return None
    return Fact(
        FactKind.VARIABLE, dtype, shape, size, 0, size, tensor_index=index, handle_fact=handle_fact
    )
