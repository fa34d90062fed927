"""Files of safetensors, read without data: they are mapped, and no page is touched."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tensorlens.planning.patches import patched

_NATIVE = "safetensors._safetensors_rust"


@contextlib.contextmanager
def safetensors_patches() -> Iterator[None]:
    """Let safetensors map the tensors of a file while entered."""
    if importlib.util.find_spec("safetensors") is None:
        yield
        return
    owner = importlib.import_module("safetensors.torch")
    native = importlib.import_module("safetensors").safe_open
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(owner, "load_file", _load_file))
        for name, module in [*sys.modules.items()]:
            # modules that imported the reader by name
            if getattr(module, "__dict__", {}).get("safe_open") is native and name != _NATIVE:
                stack.enter_context(patched(module, "safe_open", _SafeOpen))
        yield


def _load_file(filename: Any, device: Any = "cpu") -> dict[str, Any]:
    return _SafeOpen(filename, device=device).get_tensors()


class _Reader:
    """A reader of tensors, outside of dispatch modes, that moves them to a device."""

    def __init__(self, native: Any, device: Any) -> None:
        self._native = native
        self._device = torch.device(device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def _read(self, make: Callable[[Any], Any], key: Any) -> Any:
        with _disable_current_modes():
            tensor = make(key)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)


class _Slice(_Reader):
    """A tensor of a file, read in part."""

    def __getitem__(self, index: Any) -> Any:
        return self._read(self._native.__getitem__, index)


class _SafeOpen(_Reader):
    """``safetensors.safe_open``, whose tensors are mapped from the file."""

    def __init__(
        self, filename: Any, framework: str = "pt", device: Any = "cpu", **options: Any
    ) -> None:
        native = importlib.import_module(_NATIVE)
        super().__init__(native.safe_open(filename, framework=framework, device="cpu"), device)

    def __enter__(self) -> _SafeOpen:
        self._native.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._native.__exit__(*exception)

    def get_tensor(self, name: str) -> Any:
        """Return a tensor."""
        return self._read(self._native.get_tensor, name)

    def get_tensors(self) -> dict[str, Any]:
        """Return all tensors."""
        return {name: self.get_tensor(name) for name in self._native.keys()}

    def get_slice(self, name: str) -> _Slice:
        """Return a reader of parts of a tensor."""
        return _Slice(self._native.get_slice(name), self._device)
