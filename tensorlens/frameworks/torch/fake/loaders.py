"""Data is loaded for real: its order, its augmentations and its shapes are what they are.

Only what the loading code itself puts on the device is fake.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _pop_mode,
    _push_mode,
)
from torch.utils.data import DataLoader, dataloader

_IN_THIS_PROCESS = {
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "multiprocessing_context": None,
}


def install() -> None:
    """Let every ``DataLoader`` load in this process, and outside of fake tensors."""
    original = DataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(loader: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(loader, *args, **kwargs)
        for name, value in _IN_THIS_PROCESS.items():
            if name in bound.arguments:
                bound.arguments[name] = value
        original(*bound.args, **bound.kwargs)

    DataLoader.__init__ = initialize
    iterator = dataloader._BaseDataLoaderIter
    for kind, name in (
        (iterator, "__init__"),
        (iterator, "_reset"),
        (dataloader._SingleProcessDataLoaderIter, "_next_data"),
    ):
        setattr(kind, name, _for_real(getattr(kind, name)))


def _for_real(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes() as outer:
            if not outer:
                return method(*args, **kwargs)
            with _FakeOnDevices(outer):
                return method(*args, **kwargs)

    return run


class _FakeOnDevices(TorchDispatchMode):
    """Runs operators for real, but for those on fake tensors or for the device."""

    def __init__(self, outer: list[Any]) -> None:
        super().__init__()
        self._outer = outer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator."""
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if (device is not None and torch.device(device).type == "cuda") or any(
            isinstance(each, FakeTensor) for each in pytree.tree_leaves((args, kwargs))
        ):
            with self._restored():
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        # pushed as they are: entering one again may have effects of its own
        for mode in self._outer:
            _push_mode(mode)
        try:
            yield
        finally:
            for _ in self._outer:
                _pop_mode()
