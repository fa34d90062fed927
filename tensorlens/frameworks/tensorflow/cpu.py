"""The counter of host memory: TensorFlow's CPU allocator where it can be tapped, or a fallback."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tensorlens.frameworks.base import UNKNOWN, Counter, Reader
from tensorlens.frameworks.host.choice import HostCounterChoice, NativeCounter
from tensorlens.frameworks.host.process import process_counter
from tensorlens.frameworks.tensorflow import counters
from tensorlens.frameworks.tensorflow.native import TensorflowAllocator, install

_BFC = "TF_CPU_ALLOCATOR_USE_BFC"


class CpuCounter(NativeCounter):
    """Counter of TensorFlow's CPU allocator: tensors and the scratch of kernels."""

    source = "TensorFlow CPU allocator"

    def __init__(self, allocator: TensorflowAllocator) -> None:
        super().__init__(allocator)
        self.allocator = allocator


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
        resident, read_peak = self._resident, counters.read_peak

        def read() -> tuple[int, int, int]:
            if self._asked and counters.is_initialized():
                # it has been read, and is none of the program's child processes' business
                self._asked = False
                os.environ.pop(_BFC, None)
            found = read_peak("CPU:0")
            if found is None:
                return UNKNOWN, UNKNOWN, resident()[2]
            return *found, resident()[2]

        return read


def _native() -> CpuCounter:
    allocator, fresh = install()
    if fresh:
        # the trial's peak is not the program's
        allocator.read()
    return CpuCounter(allocator)


def _fall_back() -> Counter:
    # TensorFlow reads it when the first operation asks for memory
    if not counters.is_initialized():
        return BfcCounter(ask=_BFC not in os.environ)
    return BfcCounter() if _bfc_is_on() else process_counter()


def _bfc_is_on() -> bool:
    """Tell whether the user's own setting was there when TensorFlow read it."""
    if os.environ.get(_BFC, "").lower() not in ("1", "true"):
        return False
    found = counters.memory_info("CPU:0")
    return found is not None and found[1] > 0


_choice = HostCounterChoice(_native, _fall_back)
cpu_counter = _choice.counter
fallback_reason = _choice.fallback_reason
notes = _choice.notes
