"""The counter of host memory: TensorFlow's CPU allocator where it can be tapped, or a fallback."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from tensorlens.errors import UsageError
from tensorlens.frameworks.base import UNKNOWN, Counter, Reader
from tensorlens.frameworks.process import forced_source, process_counter
from tensorlens.frameworks.tensorflow import context
from tensorlens.frameworks.tensorflow.native import (
    NativeUnavailable,
    TensorflowAllocator,
    install,
)

_BFC = "TF_CPU_ALLOCATOR_USE_BFC"


class CpuCounter:
    """What TensorFlow's CPU allocator has handed out: tensors and the scratch of kernels.

    Exact requested bytes, for the whole process: eager code, graph functions, every thread.
    """

    device = "cpu"
    source = "TensorFlow CPU allocator"
    precision = "exact bytes"

    def __init__(self, allocator: TensorflowAllocator) -> None:
        self.allocator = allocator
        self.missing: Mapping[str, str] = {}
        if allocator.resident() < 0:
            self.missing = {"reserved": "this system does not tell the resident set"}

    def reader(self) -> Reader:
        """Return a function that gives ``(allocated, peak, resident set)`` in bytes."""
        return self.allocator.read


class BfcCounter:
    """The BFC allocator on the CPU, by ``get_memory_info``: whole chunks, up to twice the request.

    Chunks are multiples of 256 bytes, and one is split only if it is at least twice the request
    (tsl/framework/bfc_allocator.cc, 2.21).
    """

    device = "cpu"
    source = "TensorFlow BFC allocator"
    precision = "whole chunks: up to twice what was asked for"
    missing: Mapping[str, str] = {}

    def __init__(self) -> None:
        self._resident = process_counter().reader()

    def reader(self) -> Reader:
        """Return a function that gives ``(allocated, peak, resident set)`` in bytes."""
        resident, info = self._resident, context.memory_info

        def read() -> tuple[int, int, int]:
            found = info("CPU:0", reset=True)
            if found is None:
                return UNKNOWN, UNKNOWN, resident()[2]
            return *found, resident()[2]

        return read


_lock = threading.RLock()
_native: CpuCounter | None = None
_fallback: Counter | None = None
_reason: str | None = None


def cpu_counter() -> Counter:
    """Return the best counter of host memory; the first call taps the allocator.

    ``TENSORLENS_COUNTER=native|heap|resident`` asks for one of them.

    Raises:
        UsageError: it asks for one that does not exist or cannot be had here.
    """
    chosen = forced_source()
    if chosen in ("heap", "resident"):
        return process_counter()
    with _lock:
        counter = _native or _tap()
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


def _tap() -> CpuCounter | None:
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
        # the trial's peak is not the program's
        allocator.read()
    _native = CpuCounter(allocator)
    return _native


def _fall_back() -> Counter:
    global _fallback
    # TensorFlow reads it when the first operation asks for memory
    if not context.is_initialized():
        os.environ.setdefault(_BFC, "1")
    is_on = os.environ.get(_BFC, "").lower() in ("1", "true")
    _fallback = BfcCounter() if is_on and _bfc_in_time() else process_counter()
    return _fallback


def _bfc_in_time() -> bool:
    """Tell whether the setting was there when TensorFlow read it, as far as its figures show."""
    if not context.is_initialized():
        return True
    found = context.memory_info("CPU:0", reset=False)
    return found is not None and found[1] > 0
