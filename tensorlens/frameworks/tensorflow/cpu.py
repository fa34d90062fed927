"""The counter of host memory: TensorFlow's CPU allocator where it can be tapped, or a fallback."""

from __future__ import annotations

from tensorlens.frameworks.host.counters import HostCounterChoice, NativeCounter
from tensorlens.frameworks.tensorflow.native import TensorflowAllocator, install


class CpuCounter(NativeCounter[TensorflowAllocator]):
    """Counter of TensorFlow's CPU allocator: tensors and the scratch of kernels."""

    source = "TensorFlow CPU allocator"


_choice = HostCounterChoice(lambda: CpuCounter(install()))
cpu_counter = _choice.counter
allocator = _choice.allocator
recordable = _choice.recordable
block_sizes = _choice.sizes
fallback_reason = _choice.fallback_reason
notes = _choice.notes
