"""Attributes replaced for a while, and modules changed once a program imports them."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_absent = object()


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of a class or module another value while it is entered."""
    before = vars(owner).get(name, _absent)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _absent:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextlib.contextmanager
def on_import(changes: dict[str, Callable[[ModuleType], None]]) -> Iterator[None]:
    """Call what is given for a module once it is imported, at once if it is already.

    Args:
        changes: name of a module to what is called with it.
    """
    for name in [name for name in changes if name in sys.modules]:
        changes[name](sys.modules[name])
    finder = _Finder({name: each for name, each in changes.items() if name not in sys.modules})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        change = self._changes.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                change(module)

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec
