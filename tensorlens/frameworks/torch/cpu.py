"""The counter of host memory: torch's CPU allocator where that can be counted, or a fallback."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import torch

from tensorlens.frameworks.host.counters import HostCounterChoice, NativeCounter
from tensorlens.frameworks.torch.census.exclusive_use import undisturbed
from tensorlens.frameworks.torch.census.tensors.ddp_reducer import reducer_buckets
from tensorlens.frameworks.torch.census.tensors.graph import maker_of, walk
from tensorlens.frameworks.torch.native import NativeUnavailable, TorchAllocator, install
from tensorlens.heap.fallback import without_tuples


class CpuCounter(NativeCounter[TorchAllocator]):
    """Counter of torch's CPU allocator: storages and the scratch of kernels."""

    source = "torch CPU allocator"

    def __init__(self, allocator: TorchAllocator) -> None:
        super().__init__(allocator)
        if not allocator.counts_default:
            self.precision = "exact bytes, but for deepcopy and pickle"


def _native() -> CpuCounter:
    installed, fresh = install()
    if fresh:
        adopt_living(installed)
    return CpuCounter(installed)


_choice = HostCounterChoice(_native)
cpu_counter = _choice.counter
allocator = _choice.allocator
recordable = _choice.recordable
block_sizes = _choice.sizes
fallback_reason = _choice.fallback_reason
notes = _choice.notes


def adopt_living(allocator: TorchAllocator) -> int:
    """Count in the CPU storages of living tensors, of gradients, and of what autograd saved.

    Runs no code of the objects it meets. Returns how many storages were taken.
    """
    with undisturbed() as can_read:
        objects = without_tuples()
        # isinstance would ask the object itself, through __class__
        tensors = [item for item in objects if issubclass(type(item), torch.Tensor)]
        graph = walk(map(maker_of, tensors), can_read)
        tensors += (saved.tensor for saved in graph.saved)
        tensors += graph.leaves.values()
        tensors += (bucket for *_, bucket in reducer_buckets(objects))
        return allocator.adopt(array("Q", map(_address, tensors)))


def watch() -> Callable[[], None]:
    """Count host memory from now on and note which line allocates it, until what is returned.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
    """
    counted = allocator()
    if counted is None:
        return lambda: None
    try:
        counted.watch_births()
    except NativeUnavailable:
        # names and sizes do without; births are shown as unknown
        return lambda: None
    return lambda: counted.watch_births(False)


def _address(tensor: Any) -> int:
    try:
        return int(torch._C.TensorBase._cdata.__get__(tensor))
    except Exception:
        # half made
        return 0
