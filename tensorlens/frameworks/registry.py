"""The adapters of the frameworks that the program has imported.

The registry looks in ``sys.modules`` and never imports a framework itself. Two frameworks in one
process are two adapters; their callers add up or join the answers.
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
"""Name of an imported framework to the note why it cannot be used."""


def adapters() -> list[Adapter]:
    """Return the adapters of the frameworks fully imported so far.

    Those whose adapter fails are left out; :func:`unusable_notes` says why.
    """
    for name, adapter_module in _FRAMEWORKS.items():
        if name in sys.modules and name not in _loaded and name not in _unusable:
            _load(name, adapter_module)
    # map() enters no Python frame: each profiled call comes here
    return [*filter(None, map(_loaded.get, _FRAMEWORKS))]


def _load(name: str, adapter_module: str) -> None:
    if not _is_imported(name):
        return
    try:
        _loaded.setdefault(name, importlib.import_module(adapter_module).Adapter())
    except Exception as error:
        if is_from_a_handler(error):
            raise
        _unusable[name] = f"{name} is left out: {reason(error)}"


def unusable_notes() -> tuple[str, ...]:
    """Return a note for each imported framework that cannot be used."""
    return tuple(_unusable.values())


def imported_since(earlier: Sequence[Adapter]) -> tuple[str, ...]:
    """Return the names of frameworks whose adapters are not in ``earlier``."""
    return tuple(each.name for each in adapters() if each not in earlier)


def ask(
    adapters: Sequence[Adapter], question: Callable[[Adapter], _T]
) -> tuple[list[tuple[Adapter, _T]], dict[str, str]]:
    """Ask each adapter; return the answers, and the reasons of failures by name.

    Raises:
        Exception: the last one's failure, if all failed; one of ours has the reasons of all.
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
    """Return the answers of the adapters that have the device in question.

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
    """Return the first answer that is not None."""
    answers = map(question, adapters())
    return next((answer for answer in answers if answer is not None), None)


def device_name(device: Any) -> str:
    """Return the full spelling of a device in the first framework that has it.

    Raises:
        DeviceError: no imported framework has such a device.
    """
    names = ask_owners(adapters(), lambda each: each.device_name(device))
    return names[0] if names else str(device)


def supported() -> tuple[str, ...]:
    """Return the names of all supported frameworks."""
    return tuple(_FRAMEWORKS)


def not_imported() -> tuple[str, ...]:
    """Return the names of supported frameworks that are not imported."""
    return tuple(name for name in _FRAMEWORKS if name not in _loaded and name not in _unusable)


def no_framework_text(trouble: str, when: str) -> str:
    """Return the message for a request made before any framework is imported.

    Args:
        trouble: ``nothing to record``.
        when: the time by which a framework must be imported.
    """
    names = " or ".join(_FRAMEWORKS)
    return "; ".join([f"{trouble}: import {names} {when}", *why_unusable()])


def why_unusable() -> tuple[str, ...]:
    """Return the known reasons why nothing imported can be used."""
    # it reads the heap, which is seldom needed
    from tensorlens.frameworks.keras import kinds

    backend = kinds.backend()
    if not backend or backend in _FRAMEWORKS:
        return unusable_notes()
    return (*unusable_notes(), f"Keras runs on {backend}, whose memory cannot be read")


def _is_imported(name: str) -> bool:
    """Return whether a module has run to its end; does not load a lazy module."""
    module = sys.modules.get(name)
    try:
        # the module's own attribute lookup may import it, or invent an answer
        spec = object.__getattribute__(module, "__spec__")
    except AttributeError:
        return False
    if spec is None or type(module) is getattr(importlib.util, "_LazyModule", None):
        return False
    return not getattr(spec, "_initializing", False)


def when_any_imported(act: Callable[[], None]) -> list[Callable[[], None]]:
    """Call ``act`` after each import of a framework.

    Returns:
        For each framework a function that stops waiting.
    """
    return [when_imported(name, act) for name in _FRAMEWORKS]


def when_imported(name: str, act: Callable[[], None]) -> Callable[[], None]:
    """Call ``act`` once, as soon as a module is imported: at once if it is already.

    It is called in the importing thread, before the import statement ends, and an exception that it
    raises leaves that statement. Failed imports and reloads do not count.

    Returns:
        A function that stops waiting.
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
        # Python skips finders without this method
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, path, target)
        if spec is not None:
            return spec
    return None


class _Finder(MetaPathFinder):
    """Finder of one module: asks the finders behind it, and sets a :class:`_Loader`."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act: Callable[[], None] | None = act

    def remove(self) -> None:
        """Stop waiting."""
        self._act = None
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec from the finders behind this one; None for all other modules."""
        finders = [*sys.meta_path]
        if fullname != self._name or self not in finders:
            return None
        spec = module_spec(finders[finders.index(self) + 1 :], fullname, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec

    def arrived(self) -> None:
        """Call the action, once the module is imported."""
        act = self._act
        self.remove()
        if act is not None:
            act()


class _Loader(Loader):
    """A loader that notifies its finder after loading, and else acts as the original."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Have the original loader create the module."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Have the original loader run the module, with itself as ``__loader__``."""
        spec = module.__spec__
        assert spec is not None
        spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        if sys.modules.get(spec.name) is module:
            # it has run to its end: only the action is left
            spec._initializing = False  # type: ignore[attr-defined]
            self._finder.arrived()
