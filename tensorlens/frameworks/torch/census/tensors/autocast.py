"""The copies of weights that autocast keeps while it is on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _ArgumentFound(Exception):
    pass


class _ArgumentProbe(TorchDispatchMode):  # type: ignore[misc]
    """Lets no operator run: the first one's first argument is taken, and it ends there."""

    argument: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # a conversion comes first where there is no copy
        self.argument = args[0] if func is torch.ops.aten.mm.default else None
        raise _ArgumentFound


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
    peek = _ArgumentProbe()
    # entered once: it costs more than all else
    with torch._C.DisableTorchFunction(), torch.no_grad(), peek:
        for weight in weights:
            if (
                type(weight) in (torch.Tensor, torch.nn.Parameter)
                and weight.dtype is torch.float32
                and weight.is_leaf
                and is_on(weight.device.type)
            ):
                with contextlib.suppress(Exception):
                    torch.mm(weight, weight)
                copy, peek.argument = peek.argument, None
                if copy is not None and copy is not weight:
                    copies.append((weight, copy))
    return copies


def is_on(device: str) -> bool:
    """Return whether this thread is under autocast for a kind of device."""
    try:
        return bool(torch.is_autocast_enabled(device))
    except Exception:
        return False
