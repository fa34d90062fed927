"""Host memory in place of a CUDA device, where none can be put on stage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

_HOST = torch.device("cpu")
_QUIET = ("synchronize", "empty_cache", "set_device", "reset_peak_memory_stats", "manual_seed_all")
"""Functions of ``torch.cuda`` that have nothing to do."""


class OnHost(TorchFunctionMode):  # type: ignore[misc]
    """Lets a program put everything on the CPU that it means to put on ``cuda``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch with the CPU for any CUDA device."""
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.pin_memory:
            return args[0]
        given = {name: _placed(value) for name, value in (kwargs or {}).items()}
        return func(*map(_placed, args), **given)


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Run a program with the CPU for any CUDA device."""
    with contextlib.ExitStack() as stage:
        for name in _QUIET:
            stage.enter_context(mock.patch.object(torch.cuda, name, _nothing))
        stage.enter_context(mock.patch.object(torch.cuda, "is_available", lambda: True))
        stage.enter_context(mock.patch.object(torch.cuda, "device_count", lambda: 1))
        stage.enter_context(mock.patch.object(torch.cuda, "current_device", lambda: 0))
        stage.enter_context(OnHost())
        yield


def _placed(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return _HOST
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return _HOST
    return value


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None
