"""Checkpoint files of a run without data.

Objects that the program saves are not written to disk; ``torch.load`` finds them in memory. Files
of safetensors are mapped, so that no page is touched.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.util
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakSet

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from tensorlens.planning.patches import intercepted, on_import, patched
from tensorlens.planning.trace import caution
from tensorlens.planning.trials.pickling import empty_tensor, without_data

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
"""Class, if any, and names of functions that write checkpoints, by module."""

_NOT_WRITTEN = (
    "a checkpoint is not written, as there is no data; what writing copies to the host is not in "
    "the estimate"
)


@contextlib.contextmanager
def checkpoint_file_patches() -> Iterator[None]:
    """Keep checkpoints from being written, and let safetensors map files, while entered.

    ``torch.load`` returns what ``torch.save`` was given, also after the file was renamed.
    """
    files = _SavedFiles()

    def patch_writers(module: ModuleType) -> None:
        kind, names = _WRITERS[module.__name__]
        owner = getattr(module, kind, None) if kind else module
        for name in names:
            if hasattr(owner, name):
                stack.enter_context(patched(owner, name, _write_nothing))

    with contextlib.ExitStack() as stack:
        stack.callback(files.close)
        stack.enter_context(intercepted(files.open, (builtins, "open"), (io, "open")))
        # pathlib and shutil call them too
        stack.enter_context(intercepted(files.rename, (os, "replace"), (os, "rename")))
        stack.enter_context(intercepted(files.copy, (shutil, "copyfile")))
        stack.enter_context(patched(torch, "save", files.save))
        stack.enter_context(intercepted(files.load, (torch, "load")))
        stack.enter_context(on_import(dict.fromkeys(_WRITERS, patch_writers)))
        _map_safetensors(stack)
        yield


def _write_nothing(*args: Any, **kwargs: Any) -> None:
    caution(_NOT_WRITTEN)


class _SavedFiles:
    """Objects that the program saved, by file, and files that it opened for writing.

    ``open(path, "wb")`` would empty a file before ``torch.save`` gets it. Instead a file beside it
    is opened, and replaces it if it is closed with content. Until then the original stays whole.
    """

    def __init__(self) -> None:
        self._saved: dict[Any, tuple[Any, Any]] = {}
        """Place to the file as given, held so that its ``id()`` stays its own, and saved object."""
        self._opened: WeakSet[Any] = WeakSet()

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        """Keep an object, with functions that make empty tensors in place of its tensors."""
        caution(_NOT_WRITTEN)
        self._saved[_place(f)] = f, pytree.tree_map(_emptied, obj)

    def load(
        self, original: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Return a saved object, or load a file."""
        if (place := _place(f)) not in self._saved:
            return original(f, map_location, *args, **kwargs)
        return pytree.tree_map(lambda leaf: _restored(leaf, map_location), self._saved[place][1])

    def open(
        self, original: Callable[..., Any], file: Any, mode: Any = "r", *args: Any, **kwargs: Any
    ) -> Any:
        """Open a file; for binary writing, open another, which replaces it when closed."""
        writes = isinstance(mode, str) and {*mode} >= {"w", "b"} and "opener" not in kwargs
        place = Path(_place(file)) if writes and isinstance(_place(file), str) else None
        if place is None or (place.exists() and not place.is_file()):
            return original(file, mode, *args, **kwargs)
        beside = Path(f"{place}.{os.getpid()}.new")

        def opener(_path: str, flags: int) -> int:
            return os.open(beside, flags, 0o666)

        stream = original(file, mode, *args, opener=opener, **kwargs)
        self._opened.add(stream)
        raw = getattr(stream, "raw", stream)
        close = raw.close

        def close_and_replace() -> None:
            if raw.closed:
                return
            is_written = os.fstat(raw.fileno()).st_size > 0
            close()
            # another stream may have replaced the file, or the program have removed the folder
            with contextlib.suppress(FileNotFoundError):
                if not is_written or str(place) in self._saved:
                    beside.unlink()
                    return
                if place.exists():
                    shutil.copymode(place, beside)
                beside.replace(place)

        raw.close = close_and_replace
        return stream

    def rename(self, original: Any, src: Any, dst: Any, **options: Any) -> None:
        """Rename a file, or a saved object that has none."""
        saved = None if options else self._saved.pop(_place(src), None)
        if saved is None:
            original(src, dst, **options)
        else:
            self._saved[_place(dst)] = saved

    def copy(self, original: Any, src: Any, dst: Any, **options: Any) -> Any:
        """Copy a file, or a saved object that has none."""
        if (saved := self._saved.get(_place(src))) is None:
            return original(src, dst, **options)
        self._saved[_place(dst)] = saved
        return dst

    def close(self) -> None:
        """Close files that the program left open."""
        for stream in [*self._opened]:
            stream.close()


def _emptied(leaf: Any) -> Any:
    is_strided = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    return without_data(leaf) if is_strided else leaf


def _restored(leaf: Any, map_location: Any) -> Any:
    if not isinstance(leaf, partial) or leaf.func is not empty_tensor:
        return leaf
    device = leaf.keywords["device"]
    if isinstance(map_location, (str, torch.device, int)):
        device = torch.device(map_location)
    elif isinstance(map_location, dict):
        device = torch.device(map_location.get(str(device), device))
    return leaf(device=device)


def _place(file: Any) -> Any:
    """Return the path of a file, given or open; the identity of a file in memory."""
    name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
    return os.path.realpath(name) if isinstance(name, (str, os.PathLike)) else id(file)


_NATIVE = "safetensors._safetensors_rust"


def _map_safetensors(stack: contextlib.ExitStack) -> None:
    """Let safetensors map the tensors of a file until the stack is closed."""
    if importlib.util.find_spec("safetensors") is None:
        return
    owner = importlib.import_module("safetensors.torch")
    native = importlib.import_module("safetensors").safe_open
    stack.enter_context(patched(owner, "load_file", _load_file))
    for name, module in [*sys.modules.items()]:
        # modules that imported the reader by name
        if getattr(module, "__dict__", {}).get("safe_open") is native and name != _NATIVE:
            stack.enter_context(patched(module, "safe_open", _SafeOpen))


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
