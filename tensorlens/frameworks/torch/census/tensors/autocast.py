"""The copies of weights that autocast keeps while it is on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Seen(Exception):
    pass


class _Peek(TorchDispatchMode):  # type: ignore[misc]
    """Lets no operator run: the first one's arguments are taken, and it ends there."""

    def __init__(self) -> None:
        super().__init__()
        self.operator: Any = None
        self.argument: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operator, self.argument = func, args[0]
        raise _Seen


def cached_copies(weights: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return ``(weight, its copy)`` for those that autocast of this thread has converted.

    torch has no way to ask. An operator under autocast looks its arguments up in the cache, and
    converts those that are not there: here neither the conversion nor the operator gets to run,
    so that nothing is added to the cache. Works for leaf tensors in float32, which alone are kept
    (aten/src/ATen/autocast_mode.cpp, torch 2.13).
    """
    copies: list[tuple[Any, Any]] = []
    if not torch.is_autocast_cache_enabled():
        return copies
    enabled: dict[str, bool] = {}
    peek = _Peek()
    # entered once: it costs more than all else
    with torch._C.DisableTorchFunction(), torch.no_grad(), peek:
        for weight in weights:
            if type(weight) not in (torch.Tensor, torch.nn.Parameter):
                continue
            if weight.dtype is not torch.float32 or not weight.requires_grad:
                continue
            device = weight.device.type
            if device not in enabled:
                enabled[device] = is_on(device)
            if enabled[device] and weight.is_leaf:
                copy = _copy_of(weight, peek)
                if copy is not None:
                    copies.append((weight, copy))
    return copies


def is_on(device: str) -> bool:
    """Return whether this thread is under autocast for a kind of device."""
    try:
        return bool(torch.is_autocast_enabled(device))
    except Exception:
        return False


def _copy_of(weight: Any, peek: _Peek) -> Any:
    peek.operator = peek.argument = None
    try:
        torch.mm(weight, weight)
    except _Seen:
        found, peek.argument = peek.argument, None
        if peek.operator is torch.ops.aten.mm.default and found is not weight:
            return found
    except Exception:
        return None
    return None
