"""The adapters of the frameworks that the program uses, now and once it has imported them.

A framework is used only when the program has already imported it: the registry looks in
``sys.modules`` and never imports a framework by itself. Two frameworks in one process are two
adapters; what asks them adds up, or joins, what they answer.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

from tensorlens.errors import DeviceError, TensorlensError
from tensorlens.frameworks.base import Adapter
from tensorlens.guards import is_from_a_handler, reason

_T = TypeVar("_T")

_FRAMEWORKS = {
    "torch": "tensorlens.frameworks.torch",
    "tensorflow": "tensorlens.frameworks.tensorflow",
}
_loaded: dict[str, Adapter] = {}
_unusable: dict[str, str] = {}
"""Name to the note that says why it is not used, for what the program has imported."""


def adapters() -> list[Adapter]:
    """Return the adapters of the frameworks the program has imported, fully, so far.

    One whose adapter cannot be made is left out; :func:`unusable_notes` says why.
    """
    for name, adapter in _FRAMEWORKS.items():
        if name in sys.modules and name not in _loaded and name not in _unusable:
            _load(name, adapter)
    # each profiled call asks: no more Python frames than needed
    return [*filter(None, map(_loaded.get, _FRAMEWORKS))]


def _load(name: str, adapter: str) -> None:
    if not _is_imported(name):
        return
    try:
        _loaded.setdefault(name, importlib.import_module(adapter).Adapter())
    except Exception as error:
        if is_from_a_handler(error):
            raise
        _unusable[name] = f"{name} is left out: {reason(error)}"


def unusable_notes() -> tuple[str, ...]:
    """Return a note for each framework that was imported and cannot be used."""
    return tuple(_unusable.values())


def imported_since(earlier: Sequence[Adapter]) -> tuple[str, ...]:
    """Return the names of the frameworks that were imported since ``earlier`` were all."""
    return tuple(each.name for each in adapters() if each not in earlier)


def ask(
    adapters: Sequence[Adapter], question: Callable[[Adapter], _T]
) -> tuple[list[tuple[Adapter, _T]], dict[str, str]]:
    """Ask each adapter; return the answers, and the reasons of those that failed, by name.

    Raises:
        Exception: the last one's failure, where all failed.
    """
    answers: list[tuple[Adapter, _T]] = []
    failures: dict[str, str] = {}
    for each in adapters:
        try:
            answers.append((each, question(each)))
        except Exception as error:
            if is_from_a_handler(error):
                raise
            failures[each.name] = reason(error)
            if len(failures) < len(adapters):
                continue
            if isinstance(error, TensorlensError):
                raise type(error)("; ".join(dict.fromkeys(failures.values()))) from None
            raise
    return answers, failures


def ask_owners(adapters: Sequence[Adapter], question: Callable[[Adapter], _T]) -> list[_T]:
    """Return the answers of those that have the device that is asked about.

    Raises:
        DeviceError: none has it.
    """
    answers: list[_T] = []
    refusals: list[str] = []
    for each in adapters:
        try:
            answers.append(question(each))
        except DeviceError as error:
            refusals.append(str(error))
    if refusals and not answers:
        raise DeviceError("; ".join(dict.fromkeys(refusals)))
    return answers


def first_answer(question: Callable[[Adapter], _T | None]) -> _T | None:
    """Return the answer of the first adapter that has one; None where none has."""
    answers = map(question, adapters())
    return next((answer for answer in answers if answer is not None), None)


def device_name(device: Any) -> str:
    """Return the full spelling of a device, as the first framework that has it writes it.

    Raises:
        DeviceError: no imported framework has such a device.
    """
    names = ask_owners(adapters(), lambda each: each.device_name(device))
    return names[0] if names else str(device)


def supported() -> tuple[str, ...]:
    """Return the names of the modules whose import brings a framework, imported or not."""
    return tuple(_FRAMEWORKS)


def not_imported() -> tuple[str, ...]:
    """Return the names of the modules whose import would bring one more framework."""
    return tuple(name for name in _FRAMEWORKS if name not in _loaded and name not in _unusable)


def no_framework_text(trouble: str, when: str) -> str:
    """Return the line for a person who asks for something before any framework is imported.

    Args:
        trouble: what cannot be done: ``nothing to record``.
        when: until when the import must come.
    """
    names = " or ".join(_FRAMEWORKS)
    return "; ".join([f"{trouble}: import {names} {when}", *why_unusable()])


def why_unusable() -> tuple[str, ...]:
    """Return why nothing the program has imported can be used, as far as that is known."""
    # it looks into the heap, which few need
    from tensorlens.frameworks.keras import kinds

    backend = kinds.backend()
    if not backend or backend in _FRAMEWORKS:
        return unusable_notes()
    return (*unusable_notes(), f"Keras runs on {backend}, whose memory cannot be read")


def _is_imported(name: str) -> bool:
    """Tell whether a module has run to its end; one that loads when it is used stays unloaded."""
    module = sys.modules.get(name)
    try:
        # the module's own way to look up names may import it, or make up an answer
        spec = object.__getattribute__(module, "__spec__")
    except AttributeError:
        return False
    if spec is None or type(module) is getattr(importlib.util, "_LazyModule", None):
        return False
    return not getattr(spec, "_initializing", False)


def when_any_imported(act: Callable[[], None]) -> list[Callable[[], None]]:
    """Call ``act`` whenever the program has imported one more framework.

    Returns:
        What gives up waiting, for each.
    """
    return [when_imported(name, act) for name in _FRAMEWORKS]


def when_imported(name: str, act: Callable[[], None]) -> Callable[[], None]:
    """Call ``act`` once, as soon as the module ``name`` is imported: now, if it is already.

    It is called in the thread that imports it, before the importing statement ends; what it raises
    comes out of that statement. An import that fails does not count, and neither does a reload.

    Returns:
        What gives up waiting.
    """
    if _is_imported(name):
        act()
        return lambda: None
    finder = _Finder(name, act)
    sys.meta_path.insert(0, finder)
    return finder.remove


def module_spec(
    finders: Sequence[Any], name: str, path: Sequence[str] | None, target: ModuleType | None = None
) -> ModuleSpec | None:
    """Return the spec of the first finder that has one, asked in the way of an import."""
    for finder in finders:
        # one of a kind that Python no longer asks has none
        ask = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if ask is None else ask(name, path, target)
        if spec is not None:
            return spec
    return None


class _Finder(MetaPathFinder):
    """Finds one module as the finders behind it do, and has it loaded by a :class:`_Loader`."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act: Callable[[], None] | None = act

    def remove(self) -> None:
        """Wait no longer."""
        self._act = None
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the finders behind this one find; None for all modules but one."""
        finders = [*sys.meta_path]
        if fullname != self._name or self not in finders:
            return None
        spec = module_spec(finders[finders.index(self) + 1 :], fullname, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec

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
