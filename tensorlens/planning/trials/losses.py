"""The loss in what ``step()`` returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class NotATensor(Exception):
    """Said of a value that is no tensor of the framework's."""


def loss_of(value: Any, of_tensor: Callable[[Any], float | None]) -> float | None:
    """Return the loss that ``step()`` returned, or None where there is none to see.

    It is a number or a tensor of one element, the ``loss`` of a mapping or an object, or the first
    item of a tuple or a list. ``of_tensor`` gives the number in a tensor, or None where there is
    none, and raises :class:`NotATensor` for anything else.
    """
    try:
        return _loss_of(value, of_tensor)
    except Exception:
        # what a program returns is its own matter
        return None


def _loss_of(value: Any, of_tensor: Callable[[Any], float | None]) -> float | None:
    try:
        return of_tensor(value)
    except NotATensor:
        pass
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, Mapping):
        return _loss_of(value["loss"], of_tensor) if "loss" in value else None
    if hasattr(value, "loss"):
        return _loss_of(value.loss, of_tensor)
    if isinstance(value, tuple | list) and value:
        return _loss_of(value[0], of_tensor)
    if type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1:
        return float(value)
    return None
