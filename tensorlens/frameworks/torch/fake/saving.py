"""Saving: a simulated step must not write over a checkpoint, and has nothing to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def install(warn: Callable[[str], None]) -> None:
    """Let ``torch.save`` write nothing."""

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        warn("torch.save wrote nothing: the tensors of a simulated step have no values")

    torch.save = torch.serialization.save = save
