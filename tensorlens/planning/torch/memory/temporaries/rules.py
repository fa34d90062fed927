"""Parts of rules: sizes of tensors, copies that kernels make, storage of CUB."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tensorlens.planning.card import Card
from tensorlens.planning.torch.tracker import Scratch
from tensorlens.records.torch_files.sizes import MIN_BLOCK


@dataclass(frozen=True, slots=True)
class Call:
    """An operator that has run on a card."""

    card: Card
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any

    def argument(self, place: int, name: str) -> Any:
        """Return an argument by place or name; None where it is left out."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name)


Rule = Callable[[Call], Iterable[Scratch]]
"""Gives what a kernel takes for a call of its operator."""

scratch = Scratch.exactly

INDEX_BYTES = 8
WARP = 32
HALVES = (torch.float16, torch.bfloat16)
_RESIDENT_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536}


def nbytes(tensor: Any) -> int:
    """Return the bytes of a tensor's elements."""
    size: int = tensor.numel() * tensor.dtype.itemsize
    return size


def wide_itemsize(dtype: torch.dtype) -> int:
    """Return the bytes of the type that sums of ``dtype`` are kept in: ``at::opmath_type``."""
    size: int = 4 if dtype in HALVES else dtype.itemsize
    return size


def last_power(count: int) -> int:
    """Return the highest power of two that is not above ``count``; 1 for none."""
    return 1 << (max(count, 1).bit_length() - 1)


def ceil_div(count: int, unit: int) -> int:
    """Return how many units hold ``count``."""
    return -(-count // unit)


def device_type(tensor: Any) -> str:
    """Return ``cuda`` or ``cpu``, without the operator that a fake tensor's ``device`` is."""
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    return str(device.type)


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a tensor: an optional one may be None."""
    return isinstance(value, torch.Tensor)


def layout(tensor: Any) -> torch.memory_format:
    """Return a tensor's layout (``suggest_memory_format``)."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if last is None or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


def is_channels_last(tensor: Any) -> bool:
    """Tell whether a tensor has its channels last, and not first as well."""
    return layout(tensor) is not torch.contiguous_format


def is_deterministic() -> bool:
    """Tell whether the program allows deterministic kernels alone."""
    return (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    )


def resident_threads(card: Card) -> int:
    """Return how many threads a multiprocessor holds, by its compute capability.

    CUDA programming guide, technical specifications.
    """
    return _RESIDENT_THREADS.get(card.capability, 2048)


def contiguous(*tensors: Any, before: bool = True) -> list[Scratch]:
    """Return the copies that ``.contiguous()`` makes of those that are not."""
    return [
        scratch(nbytes(each), "contiguous copy", before=before)
        for each in tensors
        if is_tensor(each) and not each.is_contiguous()
    ]


def contiguous_arguments(*places: int, before: bool = True) -> Rule:
    """Return the rule of a kernel that makes these arguments contiguous."""
    return lambda call: contiguous(
        *(call.args[place] for place in places if place < len(call.args)), before=before
    )


def heaviest(*phases: Sequence[Scratch]) -> Sequence[Scratch]:
    """Return what is taken in the phase of a kernel that takes most."""
    return max(phases, key=total)


def total(phase: Iterable[Scratch]) -> int:
    """Return what an allocator sets aside for a phase."""
    return sum(ceil_div(each.nbytes, MIN_BLOCK) * MIN_BLOCK for each in phase)


def radix_sort(count: int, key: int, value: int, *, before: bool = False) -> Scratch:
    """Return the storage of ``cub::DeviceRadixSort`` for so many keys and values of these bytes.

    It sorts from one pair of buffers to another and back. Besides them there are counters: of
    every digit of the key, and of 256 digits for each tile of some 3840 pairs. Few pairs are
    sorted in shared memory (``cub/device/dispatch/dispatch_radix_sort.cuh``, CCCL 2).
    """
    widest = max(key, value)
    if count <= 256 * max(1, 19 * 4 // max(widest, 4)):
        return scratch(1, "sorting", before=before)
    buffers = count * (key + value)
    counters = key * 256 * 8 + ceil_div(count, 3840) * 1024
    return Scratch(buffers + counters, buffers, buffers + 2 * counters + 65536, "sorting", before)


def scan(count: int, itemsize: int) -> Scratch:
    """Return the storage of ``cub::DeviceScan``: the state of each tile of some 1920 elements."""
    state = 16 if itemsize > 4 else 8
    likely = (ceil_div(count, 1920) + WARP) * state
    return Scratch(likely, 1, (ceil_div(count, 256) + WARP) * 2 * state + 1024, "scan")
