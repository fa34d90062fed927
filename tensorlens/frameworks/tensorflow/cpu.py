"""The counter of host memory: TensorFlow's CPU allocator where it can be tapped, or a fallback."""

from __future__ import annotations

from tensorlens.frameworks.host.choice import HostCounterChoice, NativeCounter
from tensorlens.frameworks.tensorflow.native import TensorflowAllocator, install


class CpuCounter(NativeCounter):
    """Counter of TensorFlow's CPU allocator: tensors and the scratch of kernels."""

    source = "TensorFlow CPU allocator"

    def __init__(self, allocator: TensorflowAllocator) -> None:
        super().__init__(allocator)
        self.allocator = allocator


def _native() -> CpuCounter:
    allocator, fresh = install()
    if fresh:
        # the trial's peak is not the program's
        allocator.read()
    return CpuCounter(allocator)


_choice = HostCounterChoice(_native)
cpu_counter = _choice.counter
fallback_reason = _choice.fallback_reason
notes = _choice.notes
