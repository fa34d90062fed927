"""Names of references that the native search leaves open, and of where paths begin.

Examples: a slot, a place in a deque, an element of a set, a closure's variable, a local of a
generator. Built-in types' own functions are applied to the objects, so none of their code runs.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from types import (
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    MemberDescriptorType,
    TracebackType,
)
from typing import Any

from tensorlens.heap.attributes import (
    dict_of,
    is_subtype,
    module_of_type,
    mro,
    name_of_type,
    qualname_of_type,
    vars_of_module,
    vars_of_type,
)
from tensorlens.heap.frames import TEMPORARY, label, locals_of, suspension
from tensorlens.records.names import ATTRIBUTE, INDEX, TEXT

KEPT_BY_TRACEBACK = " (kept by a traceback)"
"""Suffix for a variable of a function that has ended."""
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, CellType)

_GETTERS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (BaseException, ("args", "__cause__", "__context__", "__traceback__")),
    (TracebackType, ("tb_next", "tb_frame")),
)


def type_name(holder: Any) -> str:
    """Return the type's name, to be used for an object without a name: ``Node``, ``<list>``."""
    name = name_of_type(type(holder))
    return f"<{name}>" if any(type(holder) is kind for kind in _CONTAINERS) else name


def class_text(kind: type) -> str:
    """Return the qualified name of a class, with its module unless that is ``__main__``."""
    try:
        module = module_of_type(kind)
    except AttributeError:
        module = None
    return _with_module(module, qualname_of_type(kind))


def function_text(function: FunctionType) -> str:
    """Return the qualified name of a function, with its module unless that is ``__main__``."""
    return _with_module(function.__module__, function.__qualname__)


def module_text(module: Any) -> str:
    """Return the name of a module."""
    name = dict.get(vars_of_module(module), "__name__")
    return name if type(name) is str else "<module>"


def closure_text(function: FunctionType, index: int) -> str:
    """Return the name of a closure's variable, by its number among the cells."""
    names = function.__code__.co_freevars
    name = names[index] if index < len(names) else "?"
    return f"closure of {function.__qualname__}: {name}"


def local_text(holder: Any, address: int) -> str:
    """Return the name of a variable of a suspended generator or of a kept frame."""
    frame, kept = holder, KEPT_BY_TRACEBACK
    if (names := suspension(type(holder))) is not None:
        frame, kept = getattr(holder, names.frame), ""
    if type(frame) is not FrameType:
        return f"{holder.__name__}()"
    code: CodeType = frame.f_code
    for name, value, *_ in locals_of(frame):
        if value == address and not name.startswith("."):
            return f"{label(code)}{name}{kept}"
    return f"{label(code)}{TEMPORARY}{kept}"


class ReferenceNames:
    """Names of references whose place is unknown, with a cache of types and deques."""

    def __init__(self) -> None:
        self._slots: dict[int, list[tuple[str, Callable[[Any], Any]]]] = {}
        self._places: dict[int, dict[int, int]] = {}

    def step(self, holder: Any, child: int, type_name: str) -> tuple[int, int | str]:
        """Return the kind of the name's node for a reference, and its index or text.

        ``child`` is an address, since a tuple must not be referred to; ``type_name`` is its type's.
        """
        kind = type(holder)
        if is_subtype(kind, collections.deque):
            place = self._place(holder, child)
            if place is not None:
                return INDEX, place
        if is_subtype(kind, set) or is_subtype(kind, frozenset):
            return TEXT, "{…}"
        for name, get in self._slots_of(kind):
            try:
                if id(get(holder)) == child:
                    return ATTRIBUTE, name
            except (AttributeError, TypeError, ValueError):
                continue
        attributes = dict_of(holder)
        if id(attributes) == child:
            return ATTRIBUTE, "__dict__"
        if type(attributes) is dict:
            for key, value in [*attributes.items()]:
                if id(value) == child and type(key) is str:
                    return ATTRIBUTE, key
        return ATTRIBUTE, f"<{type_name}>"

    def _slots_of(self, kind: type) -> list[tuple[str, Callable[[Any], Any]]]:
        slots = self._slots.get(id(kind))
        if slots is None:
            slots = []
            for base in mro(kind):
                for name, found in [*vars_of_type(base).items()]:
                    if type(found) is MemberDescriptorType and type(name) is str:
                        slots.append((name, found.__get__))
                for special, names in _GETTERS:
                    if base is special:
                        slots += [(name, vars_of_type(base)[name].__get__) for name in names]
            self._slots[id(kind)] = slots
        return slots

    def _place(self, holder: Any, child: int) -> int | None:
        places = self._places.get(id(holder))
        if places is None:
            places = {}
            try:
                for index, item in enumerate(collections.deque.__iter__(holder)):
                    places.setdefault(id(item), index)
            except RuntimeError:
                # another thread changed it
                places = {}
            self._places[id(holder)] = places
        return places.get(child)


def _with_module(module: Any, name: str) -> str:
    return name if type(module) is not str or module == "__main__" else f"{module}.{name}"
