"""What torch's CPU kernels keep for their next call, as far as a library counts it."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from pathlib import Path

import torch

_NAMES = ("mkl_serv_mem_stat", "MKL_Mem_Stat")
"""``mkl_mem_stat`` of MKL's reference, linked into torch or from MKL's own library."""

_ABSENT = "this torch's MKL, if it has one, does not tell (mkl_mem_stat)"


def kernel_caches() -> tuple[int | None, str]:
    """Return the bytes that MKL keeps in buffers, or None, and the reason it is not known.

    oneDNN counts neither its primitives nor the weights it packed.
    """
    count = _counter()
    if count is None:
        return None, _ABSENT
    return count(), ""


@functools.cache
def _counter() -> Callable[[], int] | None:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    path = Path(torch.__file__).resolve().parent / "lib" / f"libtorch_cpu.{suffix}"
    try:
        # it is loaded: this finds it, and what it is linked to
        library = ctypes.PyDLL(str(path))
    except OSError:
        return None
    for name in _NAMES:
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes, function.restype = (ctypes.c_void_p,), ctypes.c_int64
            return functools.partial(_ask, function)
    return None


def _ask(function: Callable[[int], int]) -> int:
    buffers = ctypes.c_int()
    return function(ctypes.addressof(buffers))
