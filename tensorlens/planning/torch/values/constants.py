"""Values kept beside fake tensors, as real tensors on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

MAX_ELEMENTS = 1 << 22
"""Most whole numbers or truth values of one tensor that are kept; 32 MiB of 64-bit ones."""
_MAX_FLOATS = 4096


@dataclass(slots=True)
class SharedState:
    """State that all views of one tensor share."""

    assumed: bool = False
    """Whether the values stand for others that depend on data."""
    stale: bool = False
    """Whether unknown values were written over them."""


class Constant(NamedTuple):
    """The values of a tensor."""

    tensor: Any
    state: SharedState


FIXED = SharedState()
"""State of real tensors and of torch's own constants."""
_ATTRIBUTE = "_constant_values"


def attached(tensor: Any) -> Constant | None:
    """Return the values attached to a fake tensor, stale ones too; None if there are none."""
    constant: Constant | None = vars(tensor).get(_ATTRIBUTE)
    return constant


def attach(tensor: Any, constant: Constant) -> None:
    """Attach values to a fake tensor."""
    vars(tensor)[_ATTRIBUTE] = constant


def constant_of(tensor: Any) -> Constant | None:
    """Return the values of a tensor; None if unknown."""
    if isinstance(tensor, FakeTensor):
        constant = attached(tensor)
        if constant is None:
            return None if tensor.constant is None else Constant(tensor.constant, FIXED)
        values, state = constant
        is_current = values.shape == tensor.shape and values.dtype == tensor.dtype
        return constant if is_current and not state.stale else None
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu":
        if tensor.layout is torch.strided and not tensor.is_quantized:
            return Constant(tensor.detach(), FIXED)
    return None


def set_constant(tensor: Any, values: Any, assumed: bool = False) -> None:
    """Attach values of the same shape to a fake tensor, as a tensor without views."""
    if isinstance(tensor, FakeTensor) and values.shape == tensor.shape:
        attach(tensor, Constant(values, SharedState(assumed)))


def is_uniform(values: Any) -> bool:
    """Tell whether a tensor is one element, expanded."""
    return all(
        size == 1 or stride == 0 for size, stride in zip(values.shape, values.stride(), strict=True)
    )


def is_tracked(tensor: Any) -> bool:
    """Tell whether values of this type and number are kept."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return bool(tensor.numel() <= _MAX_FLOATS)
    return bool(tensor.numel() <= MAX_ELEMENTS)
