"""Files that a run without data saves: none is written, and what was to be saved can be loaded."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

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
"""Module to the class, if any, and its functions that write."""

_replace = os.replace
"""As it is outside of the run."""

_TEXT = (
    "a checkpoint is not written, as there is no data; what writing copies to the host is not in "
    "the estimate"
)


@contextlib.contextmanager
def saved_file_patches() -> Iterator[None]:
    """Let ``torch.save`` and its like write no file while it is entered.

    ``torch.load`` gives back what was to be saved, also of a file that was renamed since.
    """
    files = _SavedFiles()

    def change(module: ModuleType) -> None:
        kind, names = _WRITERS[module.__name__]
        owner = getattr(module, kind, None) if kind else module
        for name in names:
            if hasattr(owner, name):
                stack.enter_context(patched(owner, name, _write_nothing))

    with contextlib.ExitStack() as stack:
        stack.callback(files.close)
        stack.enter_context(intercepted(files.open, (builtins, "open"), (io, "open")))
        # of pathlib and shutil too
        stack.enter_context(intercepted(files.rename, (os, "replace"), (os, "rename")))
        stack.enter_context(intercepted(files.remove, (os, "remove"), (os, "unlink")))
        for name in ("copyfile", "copymode", "copystat"):
            stack.enter_context(intercepted(files.copy, (shutil, name)))
        stack.enter_context(patched(torch, "save", files.save))
        stack.enter_context(intercepted(files.load, (torch, "load")))
        stack.enter_context(on_import(dict.fromkeys(_WRITERS, change)))
        yield


def _write_nothing(*args: Any, **kwargs: Any) -> None:
    caution(_TEXT)


class _SavedFiles:
    """What the program saved, by file, and the earlier content of files that it opened for that.

    ``open(path, "wb")`` empties a file before ``torch.save`` is told of it. Where there is none an
    empty one stands for what is saved, until the end.
    """

    def __init__(self) -> None:
        self._saved: dict[Any, tuple[Any, Any]] = {}
        """A place to the file as it was given, which keeps its identity, and what was saved."""
        self._aside: dict[str, str] = {}
        """A file to where its content is meanwhile."""
        self._new: set[str] = set()
        self._process = os.getpid()
        """A child that it forks has no end at which files are put back."""

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        """Keep what is to be saved, tensors as makers of empty ones."""
        caution(_TEXT)
        place = _place(f)
        if place in self._aside:
            self._put_back(place)
        self._keep(f, (f, pytree.tree_map(_emptied, obj)))

    def load(
        self, original: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Return what was to be saved, or load a file."""
        if (place := _place(f)) not in self._saved:
            return original(f, map_location, *args, **kwargs)
        return pytree.tree_map(lambda leaf: _restored(leaf, map_location), self._saved[place][1])

    def open(
        self, original: Callable[..., Any], file: Any, mode: Any = "r", *args: Any, **kwargs: Any
    ) -> Any:
        """Open a file, having put aside what that would remove."""
        writes = isinstance(mode, str) and {*mode} >= {"w", "b"}
        put_aside = self._put_aside(file) if writes and os.getpid() == self._process else None
        try:
            return original(file, mode, *args, **kwargs)
        except BaseException:
            if put_aside is not None:
                self._put_back(put_aside)
            raise

    def _put_aside(self, file: Any) -> str | None:
        if isinstance(file, (str, os.PathLike)):
            with contextlib.suppress(OSError, ValueError):
                path = Path(file).resolve()
                place = str(path)
                if not path.exists():
                    self._new.add(place)
                elif path.is_file() and place not in self._aside and place not in self._new:
                    aside = f"{place}.{os.getpid()}.before"
                    _replace(place, aside)
                    self._aside[place] = aside
                    path.touch()
                    shutil.copymode(aside, path)
                    return place
        return None

    def _put_back(self, place: str) -> None:
        _replace(self._aside.pop(place), place)

    def rename(self, original: Any, src: Any, dst: Any, **options: Any) -> None:
        """Rename a file; of one that was not written only what was to be saved."""
        place = _place(src)
        saved = None if options else self._saved.pop(place, None)
        if saved is None:
            original(src, dst, **options)
            self._follow_folder(place, _place(dst))
        else:
            self._keep(dst, saved)
            if place in self._new:
                Path(place).unlink()

    def _follow_folder(self, old: Any, new: Any) -> None:
        for each in [*self._saved]:
            if str(each).startswith(f"{old}{os.sep}"):
                moved = each.replace(old, new, 1)
                self._saved[moved] = self._saved.pop(each)
                if each in self._new:
                    self._new.add(moved)

    def copy(self, original: Any, src: Any, dst: Any, **options: Any) -> Any:
        """Copy a file, or how it is marked; of one not written only what was to be saved."""
        if (saved := self._saved.get(_place(src))) is None:
            return original(src, dst, **options)
        self._keep(dst, saved)
        return dst

    def remove(self, original: Any, path: Any, **options: Any) -> None:
        """Remove a file, or forget what was to be saved in it."""
        saved = None if options else self._saved.pop(_place(path), None)
        if saved is None or _place(path) in self._new:
            original(path, **options)

    def _keep(self, file: Any, saved: tuple[Any, Any]) -> None:
        place = _place(file)
        self._saved[place] = saved
        if isinstance(place, str) and os.getpid() == self._process:
            with contextlib.suppress(OSError):
                Path(place).touch(exist_ok=False)
                self._new.add(place)

    def close(self) -> None:
        """Give files that the program opened and left empty what they had; forget new ones."""
        for place in {*self._aside, *self._new}:
            path, aside = Path(place), self._aside.get(place)
            with contextlib.suppress(OSError):
                is_written = path.is_file() and path.stat().st_size > 0
                if aside is not None and not is_written:
                    _replace(aside, place)
                elif aside is not None:
                    Path(aside).unlink()
                elif not is_written:
                    path.unlink()


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
    """Return the path of a file, also of one that is open; of what is in memory its identity."""
    if not isinstance(file, (str, os.PathLike)):
        name = getattr(file, "name", None)
        if not isinstance(name, str) or not Path(name).is_file():
            return id(file)
        file = name
    return os.path.realpath(file)
