"""The counter of host memory: torch's CPU allocator where that can be counted, or a fallback."""

from __future__ import annotations

import gc
import sys
import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tensorlens.errors import UsageError
from tensorlens.frameworks.base import Counter, Reader
from tensorlens.frameworks.process import forced_source, process_counter
from tensorlens.frameworks.torch.native import NativeUnavailable, TorchAllocator, install


class CpuCounter:
    """What torch's CPU allocator has handed out: storages and the scratch of kernels.

    Exact requested bytes, for the whole process: every thread, autograd's and compiled code's.
    """

    device = "cpu"
    source = "torch CPU allocator"

    def __init__(self, allocator: TorchAllocator) -> None:
        self.allocator = allocator
        self.precision = (
            "exact bytes"
            if allocator.counts_default
            else "exact bytes, but for deepcopy and pickle"
        )
        self.missing: Mapping[str, str] = {}
        if allocator.resident() < 0:
            self.missing = {"reserved": "this system does not tell the resident set"}

    def reader(self) -> Reader:
        """Return a function that gives ``(allocated, peak, resident set)`` in bytes."""
        return self.allocator.read


# a signal handler may ask while its own thread is building
_lock = threading.RLock()
_native: CpuCounter | None = None
_fallback: Counter | None = None
_reason: str | None = None


def cpu_counter() -> Counter:
    """Return the best counter of host memory; the first call puts the native one in place.

    ``TENSORLENS_COUNTER=native|heap|resident`` asks for one of them.

    Raises:
        UsageError: it asks for one that does not exist or cannot be had here.
    """
    chosen = forced_source()
    if chosen in ("heap", "resident"):
        return process_counter()
    with _lock:
        counter = _native or _install()
        if counter is not None:
            return counter
        if chosen == "native":
            raise UsageError(f"TENSORLENS_COUNTER=native: {_reason}")
        return _fallback or _fall_back()


def fallback_reason() -> str | None:
    """Return the one line that says why a fallback counts host memory, or None."""
    if _native is not None or _fallback is None or forced_source() is not None:
        return None
    return f"{_reason}; CPU figures are from: {_fallback.source}"


def _install() -> CpuCounter | None:
    global _native, _reason
    # a compiler that failed once is not run again for every report
    if _reason is not None:
        return None
    try:
        allocator, fresh = install()
    except NativeUnavailable as error:
        _reason = str(error)
        return None
    if fresh:
        adopt_living(allocator)
    _native = CpuCounter(allocator)
    return _native


def _fall_back() -> Counter:
    global _fallback
    _fallback = process_counter()
    return _fallback


def adopt_living(allocator: TorchAllocator) -> int:
    """Count in the CPU storages of every tensor alive in Python, and of gradients.

    Runs no code of the objects it meets. Returns how many storages were taken.
    """
    fake = _fake_tensor()
    # isinstance would ask the object itself, through __class__
    return adopt_tensors(
        allocator,
        [
            item
            for item in gc.get_objects()
            if issubclass(type(item), torch.Tensor) and not issubclass(type(item), fake)
        ],
    )


def adopt_tensors(allocator: TorchAllocator, tensors: Sequence[Any]) -> int:
    """Count in the CPU storages of these tensors and of their gradients.

    Runs no code of the tensors, and makes no object. Returns how many were taken.
    """
    with torch._C.DisableTorchFunction():
        return allocator.adopt(array("Q", map(_address, tensors)))


def _address(tensor: Any) -> int:
    try:
        return int(torch._C.TensorBase._cdata.__get__(tensor))
    except Exception:
        # half made
        return 0


def _fake_tensor() -> type | tuple[()]:
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return getattr(module, "FakeTensor", ())
