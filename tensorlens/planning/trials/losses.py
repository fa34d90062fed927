"""The loss in what ``step()`` returned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def loss_of(value: Any) -> float | None:
    """Return the loss that ``step()`` returned, or None where there is none to see.

    It is a number, a tensor or array of one element, the ``loss`` of a mapping or an object, or
    the first item of a tuple or a list. A tensor without data has none.
    """
    try:
        return _loss_of(value)
    except Exception:
        # what a program returns is its own matter
        return None


def _loss_of(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, Mapping):
        return _loss_of(value["loss"])
    if isinstance(value, tuple | list):
        return _loss_of(value[0])
    if hasattr(value, "loss"):
        return _loss_of(value.loss)
    is_one = math.prod(value.shape) == 1
    return float(value.item() if hasattr(value, "item") else value) if is_one else None
