"""Attributes, items and classes of objects, read without running any code of theirs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

MODULES = ModuleType

_MRO = type.__dict__["__mro__"].__get__
_VARS = vars(ModuleType)["__dict__"].__get__
vars_of_type: Callable[[type], Any] = type.__dict__["__dict__"].__get__
name_of_type: Callable[[type], str] = type.__dict__["__name__"].__get__
qualname_of_type: Callable[[type], str] = type.__dict__["__qualname__"].__get__
module_of_type: Callable[[type], Any] = type.__dict__["__module__"].__get__
"""Getters that run no code of a metaclass."""

TRANSPARENT = ("_modules", "_parameters", "_buffers")
"""Attributes whose value is a dict with entries that read as attributes: ``model.fc``."""


def is_subtype(kind: type, base: type) -> bool:
    """Return whether ``kind`` derives from ``base``, running no code of a metaclass.

    ``issubclass`` is enough if ``base`` is known to have a metaclass that does not override it.
    """
    return kind is base or any(known is base for known in mro(kind))


def mro(kind: type) -> tuple[type, ...]:
    """Return the types that ``kind`` derives from, itself first, running no code of a metaclass."""
    found: tuple[type, ...] = _MRO(kind)
    return found


def vars_of_module(module: Any) -> dict[str, Any]:
    """Return a module's globals, running no code of a lazy module."""
    found: dict[str, Any] = _VARS(module)
    return found


class MissingClass:
    """A class without instances, in place of one that was never imported."""


def imported(module: str, name: str) -> type:
    """Return a class by its module and name; :class:`MissingClass` if that was not imported."""
    content = getattr(sys.modules.get(module), "__dict__", {})
    kind = content.get(name)
    return kind if isinstance(kind, type) else MissingClass


def content_of(item: Any) -> dict[str, Any]:
    """Return a copy of an object's ``__dict__``, running no code of the object."""
    content = dict_of(item)
    if not issubclass(type(content), dict):
        return {}
    # copied first: another thread may add to it
    return {key: value for key, value in dict.copy(content).items() if type(key) is str}


def entry(variables: Any, name: str) -> Any:
    """Return the value of a text key in a dict, without calling any key's code; None without it."""
    if issubclass(type(variables), dict):
        for key, value in [*dict.items(variables)]:
            if type(key) is str and key == name:
                return value
    return None


def items_of(value: Any) -> list[Any]:
    """Return the items of a list or tuple, also of lists that Keras or TensorFlow tracks."""
    kind = type(value)
    wrapped = imported("tensorflow.python.trackable.data_structures", "ListWrapper")
    if is_subtype(kind, wrapped):
        # its items are in another list
        inner: Any = content_of(value).get("_storage")
        if issubclass(type(inner), list):
            return items_of(inner)
    if kind is list or kind is tuple:
        # skips places that C code left empty; lists the last item first
        return gc.get_referents(value)[::-1]
    for plain in (list, tuple):
        if issubclass(kind, plain):
            return list(plain.__iter__(value))
    return []


def text_of(value: Any) -> str:
    """Return a value that is exactly a ``str``, or an empty text in place of any other."""
    return value if type(value) is str else ""


def class_name(item: Any) -> str:
    """Return the name of an object's class, running no code of its metaclass."""
    try:
        return str(name_of_type(type(item)))
    except Exception:
        return "object"


def dict_of(holder: Any) -> Any:
    """Return an instance's ``__dict__``, bypassing properties; None if it has none."""
    return dict_getter(type(holder))(holder)


def dict_getter(kind: type) -> Callable[[Any], Any]:
    """Return a function that returns the ``__dict__`` of an instance of ``kind``."""
    for base in _MRO(kind):
        found = vars_of_type(base).get("__dict__")
        if type(found) is GetSetDescriptorType:
            return found.__get__
        if type(found) is MemberDescriptorType:
            return lambda holder: _slot(found, holder)
    return lambda holder: None


def _slot(member: MemberDescriptorType, holder: Any) -> Any:
    try:
        return member.__get__(holder)
    except (AttributeError, TypeError):
        return None
