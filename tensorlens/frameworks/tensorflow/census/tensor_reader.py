"""Reads eager tensors and where their bytes lie without running an operation."""

from __future__ import annotations

import ctypes
import functools
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
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


PLAIN, VARIABLE, UNREAD = range(3)
"""Subjects of a fact: a tensor, or a variable's value."""

_MOST_DIMENSIONS = 8
_ROW = struct.Struct(f"=5qQqQ2q{_MOST_DIMENSIONS}q")


@dataclass(frozen=True, slots=True)
class Fact:
    """One tensor, or the value of the variable that it is a handle of. Sizes are bytes."""

    tensor: int
    """Number of the tensor among those that were read."""
    parent: int
    """Of a variable's value: number of the handle's fact; else -1."""
    kind: int
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    address: int
    """Of the buffer's first byte; 0 where there is none or it is not known."""
    buffer_nbytes: int
    offset: int = 0
    """Where the tensor begins in the buffer."""
    owned: bool = False
    """Whether the buffer is TensorFlow's own, not that of NumPy or another library."""


@functools.cache
def _native() -> ctypes.PyDLL | str:
    """Return the native reader, or why there is none."""
    try:
        library = load(READER)
    except NativeUnavailable as error:
        return str(error)
    number, address = ctypes.c_int64, ctypes.c_void_p
    declare(library, {"tl_tf_read": (number, (address, number, address))})
    return library


def fallback_reason() -> str | None:
    """Return the one line that says why tensors are read from Python, or None."""
    found = _native()
    return f"{found}; variables are counted by their shapes" if isinstance(found, str) else None


def read_tensors(tensors: Sequence[Any]) -> list[Fact]:
    """Return a fact for each tensor, and one for a variable's value after its handle.

    It is read through TensorFlow's own objects where the native reader can be had.
    """
    library = _native()
    if isinstance(library, str):
        return read_in_python(tensors)
    addresses = array("Q", map(id, tensors))
    rows = array("q", bytes(2 * len(tensors) * _ROW.size))
    count = library.tl_tf_read(start(addresses), len(tensors), start(rows))
    read = _ROW.iter_unpack(memoryview(rows).cast("B")[: count * _ROW.size])
    return [_fact(row, tensors[row[1]]) for row in read]


def read_in_python(tensors: Sequence[Any]) -> list[Fact]:
    """Return what Python is told of tensors: of variables and resources no address."""
    facts: list[Fact] = []
    for number, tensor in enumerate(tensors):
        facts.append(read_tensor(tensor, number))
        value = _value(number, tensor, len(facts) - 1)
        if value is not None:
            facts.append(value)
    return facts


def _fact(row: tuple[int, ...], item: Any) -> Fact:
    parent, tensor, kind, dtype, nbytes, address, buffer_nbytes, data, owned, rank = row[:10]
    if nbytes == 0 and buffer_nbytes == 0:
        address = data = 0
    shape = row[10 : 10 + rank]
    if rank > _MOST_DIMENSIONS:
        told = _value(tensor, item, parent) if kind == VARIABLE else read_tensor(item)
        shape = () if told is None else told.shape
    return Fact(
        tensor=tensor,
        parent=parent,
        kind=kind,
        dtype=_dtype(dtype),
        shape=shape,
        nbytes=nbytes,
        address=address,
        buffer_nbytes=buffer_nbytes,
        offset=data - address if address else 0,
        owned=bool(owned),
    )


def _dtype(number: int) -> str:
    try:
        return str(dtypes.as_dtype(number).name)
    except TypeError:
        return "unknown"


def read_tensor(tensor: Any, number: int = 0) -> Fact:
    """Return what Python is told of a tensor: of numbers on the CPU their address too."""
    kind, size, address, dtype, shape = UNREAD, 0, 0, "unknown", ()
    try:
        dtype, shape = str(tensor.dtype.name), tuple(tensor._shape_tuple())
        kind = PLAIN
        size = nbytes(shape, dtype)
        if size and dtype not in OBJECTS and "CPU" in tensor.backing_device:
            # shares the memory, and is dropped at once
            interface = tensor._numpy().__array_interface__
            address = int(interface["data"][0])
    except Exception:
        # what cannot be read has neither size nor address
        kind = UNREAD
    return Fact(number, -1, kind, dtype, shape, size, address, size)


def _value(number: int, tensor: Any, parent: int) -> Fact | None:
    """Return what a handle says of the variable it is for, or None for any other tensor."""
    try:
        known = getattr(tensor, "_handle_data", None)
        if known is None or not known.is_set or len(known.shape_and_type) != 1:
            return None
        (entry,) = known.shape_and_type
        dtype, shape = _dtype(entry.dtype), tuple(each.size for each in entry.shape.dim)
        size = nbytes(shape, dtype)
    except Exception:
        return None
    return Fact(number, parent, VARIABLE, dtype, shape, size, 0, size)
