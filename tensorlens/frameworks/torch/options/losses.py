"""The number in a tensor of torch."""

from __future__ import annotations

import sys
from typing import Any

import torch

from tensorlens.frameworks.trials.losses import NotATensor
from tensorlens.frameworks.trials.losses import loss_of as loss_in


def number(value: Any) -> float | None:
    """Return the number in a tensor of one element; tensors without data have none.

    Raises:
        NotATensor: it is something else.
    """
    if not isinstance(value, torch.Tensor):
        raise NotATensor
    if value.numel() != 1 or _is_fake(value):
        return None
    return float(value.detach())


def loss_of(value: Any) -> float | None:
    """Return the loss that ``step()`` returned, or None where there is none to see."""
    return loss_in(value, number)


def _is_fake(value: Any) -> bool:
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return isinstance(value, getattr(module, "FakeTensor", ())) or value.is_meta
