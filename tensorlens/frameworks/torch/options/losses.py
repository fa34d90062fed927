"""The loss in what a step returns."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch


def loss_of(value: Any) -> float | None:
    """Return the loss that ``step()`` returned, or None where there is none to see.

    It is a number or a tensor of one element, the ``loss`` of a mapping or an object, or the first
    item of a tuple or a list. Of tensors without data there is none.
    """
    try:
        return _loss_of(value)
    except Exception:
        # what a program returns is its own matter
        return None


def _loss_of(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or _is_fake(value):
            return None
        return float(value.detach())
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, Mapping):
        return _loss_of(value["loss"]) if "loss" in value else None
    if hasattr(value, "loss"):
        return _loss_of(value.loss)
    if isinstance(value, tuple | list) and value:
        return _loss_of(value[0])
    if type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1:
        return float(value)
    return None


def _is_fake(value: Any) -> bool:
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return isinstance(value, getattr(module, "FakeTensor", ())) or value.is_meta
