"""The counter of host memory: torch's CPU allocator where that can be counted, or a fallback."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

import torch

from tensorlens.frameworks.host.choice import HostCounterChoice, NativeCounter
from tensorlens.frameworks.torch.census.tensors.ddp_reducer import reducer_tensors
from tensorlens.frameworks.torch.native import TorchAllocator, install
from tensorlens.heap.objects import without_tuples


class CpuCounter(NativeCounter):
    """Counter of torch's CPU allocator: storages and the scratch of kernels."""

    source = "torch CPU allocator"

    def __init__(self, allocator: TorchAllocator) -> None:
        super().__init__(allocator)
        self.allocator = allocator
        if not allocator.counts_default:
            self.precision = "exact bytes, but for deepcopy and pickle"


def _native() -> CpuCounter:
    allocator, fresh = install()
    if fresh:
        adopt_living(allocator)
    return CpuCounter(allocator)


_choice = HostCounterChoice(_native)
cpu_counter = _choice.counter
fallback_reason = _choice.fallback_reason
notes = _choice.notes


def adopt_living(allocator: TorchAllocator) -> int:
    """Count in the CPU storages of every tensor alive in Python, of gradients and their buckets.

    Runs no code of the objects it meets. Returns how many storages were taken.
    """
    fake = _fake_tensor()
    objects = without_tuples()
    # isinstance would ask the object itself, through __class__
    tensors = [
        item
        for item in objects
        if issubclass(type(item), torch.Tensor) and not issubclass(type(item), fake)
    ]
    return adopt_tensors(allocator, tensors, objects)


def adopt_tensors(
    allocator: TorchAllocator, tensors: Sequence[Any], modules: Sequence[Any] = ()
) -> int:
    """Count in the CPU storages of these tensors, of their gradients, and of modules' reducers.

    Runs no code of the tensors. Returns how many were taken.
    """
    tensors = [*tensors, *(tensor for *_, tensor in reducer_tensors(modules))]
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
