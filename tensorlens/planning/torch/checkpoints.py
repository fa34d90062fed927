"""Copies and checkpoints of a run without data.

Nothing is written, and what was to be is given back. Of weights in files the shapes count: what is
read is mapped, and no page of it is touched.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from tensorlens.planning.patches import intercepted, on_import, patched
from tensorlens.planning.trace import caution
from tensorlens.planning.trials.pickling import empty_tensor, without_data


@contextlib.contextmanager
def copy_patches() -> Iterator[None]:
    """Let ``copy.deepcopy`` make of a fake tensor what it makes of a real one.

    By itself it copies the mode that the tensor belongs to as well, and every operator then takes
    the copy for a real tensor, with memory of its own.
    """
    with (
        patched(FakeTensorMode, "__deepcopy__", lambda mode, memo: mode),
        intercepted(_copied, (FakeTensor, "__deepcopy__")),
    ):
        yield


def _copied(original: Any, tensor: Any, memo: Any) -> Any:
    if not tensor.is_leaf or tensor.layout is not torch.strided:
        return original(tensor, memo)
    if id(tensor) not in memo:
        with torch.no_grad():
            memo[id(tensor)] = _copy(tensor, memo)
    return memo[id(tensor)]


def _copy(tensor: Any, memo: Any) -> Any:
    data = tensor.data.clone(memory_format=torch.preserve_format)
    if getattr(tensor, "_is_param", False):
        # without the gradient, as torch/nn/parameter.py
        return torch.nn.Parameter(data, tensor.requires_grad)
    data.requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        data.grad = copy.deepcopy(tensor.grad, memo)
    return data


_WRITERS = {
    "safetensors.torch": ("", ("save_file", "save_model")),
    "torch.jit": ("", ("save",)),
    "torch.export": ("", ("save",)),
    "torch.distributed.checkpoint": ("", ("save", "async_save")),
    "transformers.modeling_utils": ("PreTrainedModel", ("save_pretrained",)),
    "transformers.trainer": ("Trainer", ("_save_checkpoint", "save_model", "save_state")),
    "peft.peft_model": ("PeftModel", ("save_pretrained",)),
    "accelerate.accelerator": ("Accelerator", ("save_state", "save_model")),
}
"""Module to the class, if any, and its functions that write."""


@contextlib.contextmanager
def writer_patches() -> Iterator[None]:
    """Let ``torch.save`` and its like write no file while it is entered."""
    kept: dict[Any, Any] = {}
    read, before = torch.load, _EarlierFiles()

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        caution(_TEXT)
        before.put_back(_place(f))
        # tensors as makers of empty ones
        kept[_place(f)] = pytree.tree_map(
            lambda leaf: without_data(leaf) if _is_strided(leaf) else leaf, obj
        )

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _place(f) in kept:
            return pytree.tree_map(lambda leaf: _made(leaf, map_location), kept[_place(f)])
        return read(f, map_location, *args, **kwargs)

    def write_nothing(*args: Any, **kwargs: Any) -> None:
        caution(_TEXT)

    with contextlib.ExitStack() as stack:
        stack.callback(before.drop)
        for module in (builtins, io):
            stack.enter_context(patched(module, "open", before.opened))
        stack.enter_context(patched(torch, "save", save))
        stack.enter_context(patched(torch, "load", load))

        def change(module: ModuleType) -> None:
            kind, names = _WRITERS[module.__name__]
            owner = getattr(module, kind, None) if kind else module
            for name in names:
                if hasattr(owner, name):
                    stack.enter_context(patched(owner, name, write_nothing))

        stack.enter_context(on_import(dict.fromkeys(_WRITERS, change)))
        if importlib.util.find_spec("safetensors") is not None:
            owner = importlib.import_module("safetensors.torch")

            def load_file(filename: Any, device: Any = "cpu") -> dict[str, Any]:
                return _SafeOpen(filename, device=device).get_tensors()

            stack.enter_context(patched(owner, "load_file", load_file))
            native = importlib.import_module("safetensors").safe_open
            for name, module in [*sys.modules.items()]:
                # those imported so far that have the reader by its name
                if getattr(module, "__dict__", {}).get("safe_open") is native and name != _NATIVE:
                    stack.enter_context(patched(module, "safe_open", _SafeOpen))
        yield


_TEXT = (
    "a checkpoint is not written, as there is no data; what writing copies to the host is not in "
    "the estimate"
)


class _EarlierFiles:
    """Earlier content of files that the program opened to write a checkpoint.

    ``open(path, "wb")`` empties a file before ``torch.save`` is told of it.
    """

    def __init__(self) -> None:
        self._open = open
        self._aside: dict[Path, Path] = {}
        """A file to where its content is meanwhile."""
        self._new: set[Path] = set()

    def opened(self, file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        """Open a file, having put aside what that would remove."""
        writes = isinstance(mode, str) and {*mode} >= {"w", "b"}
        if writes and isinstance(file, (str, os.PathLike)):
            with contextlib.suppress(OSError, ValueError):
                self._put_aside(Path(file).resolve())
        return self._open(file, mode, *args, **kwargs)

    def _put_aside(self, path: Path) -> None:
        if not path.exists():
            self._new.add(path)
        elif path.is_file() and path not in self._aside and path not in self._new:
            aside = path.with_name(f"{path.name}.{os.getpid()}.before")
            self._aside[path] = path.rename(aside)

    def put_back(self, place: Any) -> None:
        """Give a file its content again, for it is not written after all."""
        aside = self._aside.pop(Path(place), None) if isinstance(place, str) else None
        if aside is not None:
            aside.replace(place)

    def drop(self) -> None:
        """Forget the content of files that the program wrote itself, and files without any."""
        empty = (path for path in self._new if path.is_file() and not path.stat().st_size)
        for path in (*self._aside.values(), *empty):
            with contextlib.suppress(OSError):
                path.unlink()


_NATIVE = "safetensors._safetensors_rust"


class _Slice:
    """A part of a file that a tensor is made of, where there are no modes."""

    def __init__(self, native: Any, device: Any) -> None:
        self._native = native
        self._device = torch.device(device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def __getitem__(self, index: Any) -> Any:
        return self._made(self._native.__getitem__, index)

    def _made(self, make: Callable[[Any], Any], key: Any) -> Any:
        with _disable_current_modes():
            tensor = make(key)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)


class _SafeOpen(_Slice):
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
        return self._made(self._native.get_tensor, name)

    def get_tensors(self) -> dict[str, Any]:
        """Return all tensors."""
        return {name: self.get_tensor(name) for name in self._native.keys()}

    def get_slice(self, name: str) -> _Slice:
        """Return what gives a part of a tensor."""
        return _Slice(self._native.get_slice(name), self._device)


def _is_strided(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided


def _made(leaf: Any, map_location: Any) -> Any:
    if not isinstance(leaf, partial) or leaf.func is not empty_tensor:
        return leaf
    device = leaf.keywords["device"]
    if isinstance(map_location, (str, torch.device, int)):
        device = torch.device(map_location)
    elif isinstance(map_location, dict):
        device = torch.device(map_location.get(str(device), device))
    return leaf(device=device)


def _place(file: Any) -> Any:
    """Return the path of a file, also of one that is open; of what is in memory its identity."""
    if not isinstance(file, (str, os.PathLike)):
        name = getattr(file, "name", None)
        if not isinstance(name, str) or not Path(name).is_file():
            return id(file)
        file = name
    return os.path.realpath(file)
