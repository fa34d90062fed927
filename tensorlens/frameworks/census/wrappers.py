"""Unwraps functions without running any code of the objects met."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any


def wrapped(function: Any) -> Iterator[Any]:
    """Give a function and, one by one, what it wraps: methods, partials, decorators."""
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = _inside(function)


def attributes(item: Any) -> dict[str, Any]:
    """Return what an object itself holds, without asking its ``__getattr__``."""
    try:
        found = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _inside(function: Any) -> Any:
    if isinstance(function, (types.MethodType, staticmethod, classmethod)):
        return function.__func__
    if isinstance(function, (functools.partial, functools.partialmethod)):
        return function.func
    if isinstance(function, property):
        return function.fget
    return attributes(function).get("__wrapped__")
