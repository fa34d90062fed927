"""Parts of rules: a call, sizes and layouts of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tensorlens.planning.card import Card
from tensorlens.planning.torch.tracker import Scratch


@dataclass(frozen=True, slots=True)
class Call:
    """An operator that has run on a card."""

    card: Card
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any
    thread: int

    def argument(self, place: int, name: str) -> Any:
        """Return an argument by place or name; None where it is left out."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name)


Rule = Callable[[Call], Iterable[Scratch]]
"""Gives what a kernel takes for a call of its operator."""

scratch = Scratch.exactly

HALVES = (torch.float16, torch.bfloat16)
_RESIDENT_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536}


def nbytes(tensor: Any) -> int:
    """Return the bytes of a tensor's elements."""
    size: int = tensor.numel() * tensor.dtype.itemsize
    return size


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


def is_channels_last(tensor: Any) -> bool:
    """Tell whether a tensor has its channels last, and not first as well."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return (
        last is not None
        and not tensor.is_contiguous()
        and bool(tensor.is_contiguous(memory_format=last))
    )


def is_dense(tensor: Any) -> bool:
    """Tell whether a tensor has no gaps in one of the layouts that kernels read."""
    return bool(tensor.is_contiguous()) or is_channels_last(tensor)


def resident_threads(card: Card) -> int:
    """Return how many threads a multiprocessor holds, by its compute capability.

    CUDA programming guide, technical specifications.
    """
    return _RESIDENT_THREADS.get(card.capability, 2048)
