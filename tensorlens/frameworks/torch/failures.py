"""Messages of torch's failed allocations."""

from __future__ import annotations

import re
from typing import Any

import torch

from tensorlens.frameworks.base import Request
from tensorlens.frameworks.torch.backends import KINDS
from tensorlens.units import parse_bytes

_BYTES = re.compile(r"(?:tried|unable) to (?:allocate|mmap) (\d+) bytes", re.IGNORECASE)
_SIZE = re.compile(r"(?:tried|unable) to allocate (\d+(?:\.\d+)? ?[KMGTP]i?B)\b", re.IGNORECASE)
_DEVICE = re.compile(r"\b(?:GPU|device:?) ?(\d+)")
_BY_NAME = {name: kind for kind in KINDS for name in (kind.name, *kind.aliases)}
_BACKEND = re.compile(rf"\b({'|'.join(_BY_NAME)})\b", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(
    rf"\b(?:{'|'.join(_BY_NAME)})(?: backend)? out of memory\b", re.IGNORECASE
)
_CPU_TEXTS = (
    *("DefaultCPUAllocator", "not enough memory", "can't allocate memory"),
    *("Cannot allocate memory", "unable to mmap", "std::bad_alloc"),
)
_CPU_PREFIX = "[enforce fail at alloc_cpu.cpp"
_LIBRARY_TEXTS = re.compile(
    r"(?:CUDA|HIP)\b.*\bout of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
)


def failed_request(error: BaseException) -> Request | None:
    """Return the request that failed; None if ``error`` is no failed allocation.

    On the CPU the size is exact (torch 2.13, c10/core/impl/alloc_cpu.cpp). Caching allocators
    write it with two decimals (c10/cuda/CUDACachingAllocator.cpp, ``format_size``), a device's
    libraries leave it out.
    """
    try:
        text = str(error)
    except Exception:  # raised by a user's __str__
        return None
    line = " ".join(text.split("\n", 1)[0].split())[:300]
    nbytes, exact = _requested(text)
    if isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(text)
    ):
        return Request(_device_of(text), nbytes, line, exact)
    if isinstance(error, MemoryError):
        return Request("cpu", _array_nbytes(error), line or "no memory for a Python object")
    if isinstance(error, RuntimeError):
        # if no memory is left, the message itself is cut short
        is_cut = len(text) > len("[enforce") and _CPU_PREFIX.startswith(text)
        if is_cut or any(words in text for words in _CPU_TEXTS):
            return Request("cpu", nbytes, line, exact)
        if _LIBRARY_TEXTS.search(text):
            return Request(None, None, line)
    return None


def _requested(text: str) -> tuple[int | None, bool]:
    """Return the bytes requested, and whether the figure is exact."""
    match = _BYTES.search(text)
    if match:
        return int(match[1]), True
    words = _SIZE.search(text)
    return (parse_bytes(words[1]), False) if words else (None, True)


def _device_of(text: str) -> str | None:
    backend = _BACKEND.search(text)
    if backend is None:
        return None
    kind = _BY_NAME[backend[1].lower()]
    if not kind.is_numbered:
        return kind.spell(0)
    number = _DEVICE.search(text)
    return kind.spell(int(number[1])) if number else None


def _array_nbytes(error: Any) -> int | None:
    """Return the bytes of the array that NumPy could not allocate; None if the error is another."""
    try:
        nbytes = int(error.dtype.itemsize)
        for length in error.shape:
            nbytes *= int(length)
    except (AttributeError, TypeError, ValueError):
        return None
    return nbytes
