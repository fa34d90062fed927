"""Something to do as soon as the program has imported a framework."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tensorlens.frameworks.registry import supported


def when_one_arrives(act: Callable[[], None]) -> list[Callable[[], None]]:
    """Call ``act`` whenever the program has imported one more framework.

    Returns:
        What gives up waiting, for each.
    """
    return [when_imported(name, act) for name in supported()]


def when_imported(name: str, act: Callable[[], None]) -> Callable[[], None]:
    """Call ``act`` once, as soon as the module ``name`` is imported: now, if it is already.

    It is called in the thread that imports it, before the importing statement ends; what it raises
    comes out of that statement. An import that fails does not count, and neither does a reload.

    Returns:
        What gives up waiting.
    """
    module = sys.modules.get(name)
    if module is not None and not _is_initializing(module):
        act()
        return lambda: None
    finder = _Finder(name, act)
    sys.meta_path.insert(0, finder)
    return finder.remove


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _State(threading.local):
    busy = False


class _Finder(MetaPathFinder):
    """Finds one module as the other finders do, and has it loaded by a :class:`_Loader`."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act: Callable[[], None] | None = act
        # finders like this one may ask each other
        self._state = _State()

    def remove(self) -> None:
        """Wait no longer."""
        self._act = None
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return what the other finders find; None for all modules but one."""
        if fullname != self._name or self._state.busy or self._act is None:
            return None
        self._state.busy = True
        try:
            for finder in [*sys.meta_path]:
                find = getattr(finder, "find_spec", None)
                spec = None if finder is self or find is None else find(fullname, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, self)
                    return spec if isinstance(spec, ModuleSpec) else None
        finally:
            self._state.busy = False
        return None

    def arrived(self) -> None:
        """The module has been imported."""
        act = self._act
        self.remove()
        if act is not None:
            act()


class _Loader(Loader):
    """A loader that tells when it has loaded, and otherwise is the one it stands for."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the loader make the module."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Let the loader run the module, as if we were not here."""
        spec = module.__spec__
        assert spec is not None
        spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        if sys.modules.get(spec.name) is module:
            # it has run to its end: only what is done now is left
            spec._initializing = False  # type: ignore[attr-defined]
            self._finder.arrived()
