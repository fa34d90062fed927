"""The counter of host memory: TensorFlow's CPU allocator where it can be tapped, or a fallback."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from tensorlens.errors import UsageError
from tensorlens.frameworks.base import UNKNOWN, Counter, Reader
from tensorlens.frameworks.process import forced_source, process_counter
from tensorlens.frameworks.tensorflow import context, user_peaks
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

    def __init__(self, ask: bool = False) -> None:
        """``ask`` is for before TensorFlow has run an operation, which is when it decides."""
        self._resident = process_counter().reader()
        self._asked = ask
        if ask:
            os.environ[_BFC] = "1"

    def reader(self) -> Reader:
        """Return a function that gives ``(allocated, peak, resident set)`` in bytes."""
        resident, read_peak = self._resident, user_peaks.read

        def read() -> tuple[int, int, int]:
            if self._asked and context.is_initialized():
                # it has been read, and is none of the program's child processes' business
                self._asked = False
                os.environ.pop(_BFC, None)
            found = read_peak("CPU:0")
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
        _fallback = BfcCounter(ask=_BFC not in os.environ)
    else:
        _fallback = BfcCounter() if _bfc_is_on() else process_counter()
    return _fallback


def _bfc_is_on() -> bool:
    """Tell whether the user's own setting was there when TensorFlow read it."""
    if os.environ.get(_BFC, "").lower() not in ("1", "true"):
        return False
    found = context.memory_info("CPU:0", reset=False)
    return found is not None and found[1] > 0
