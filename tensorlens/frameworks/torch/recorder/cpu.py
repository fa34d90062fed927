"""A recording of torch's CPU allocator while it runs."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.frameworks.base import RecordOptions, Root
from tensorlens.frameworks.native.building import NativeUnavailable
from tensorlens.frameworks.native.host_recorder import HostRecorder, Means
from tensorlens.frameworks.native.naming import Sight
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.census.take import take
from tensorlens.frameworks.torch.census.watching import watch
from tensorlens.frameworks.torch.generated_code import compiled_from
from tensorlens.frameworks.torch.native.recorder import TorchRecorder
from tensorlens.frameworks.torch.recorder.module_paths import module_paths
from tensorlens.records.tensors import TensorTable

_recorder: TorchRecorder | None = None


def _native() -> TorchRecorder:
    global _recorder
    counter = cpu.cpu_counter()
    if not isinstance(counter, cpu.CpuCounter):
        raise NativeUnavailable(
            f"host memory cannot be recorded: it is counted by {counter.source}"
            f" ({cpu.fallback_reason() or 'TENSORLENS_COUNTER asks for it'})"
        )
    if _recorder is None:
        _recorder = TorchRecorder(counter.allocator)
    return _recorder


def host_recorder(options: RecordOptions) -> HostRecorder:
    """Record what torch's CPU allocator hands out from now on.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
        NativeUnavailable: there is no native counter, or no stacks on this Python.
    """
    sight = Sight(_census, module_paths)
    means = Means(cpu.CpuCounter.source, watch, sight, origins=compiled_from)
    return HostRecorder(options, _native(), means)


def _census(roots: Sequence[Root]) -> TensorTable:
    return take(roots).tensors
