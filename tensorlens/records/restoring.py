"""Frozen dataclasses from what ``dataclasses.asdict`` made of them, checked by their types."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from tensorlens.records.checking import items, mapping, maybe, text, whole

_T = TypeVar("_T")


def restored(kind: type[_T], data: Any, **ready: Any) -> _T:
    """Return the dataclass that ``asdict`` gave ``data`` for.

    Fields are texts, members of a ``StrEnum``, numbers, flags, dataclasses, tuples of one of
    these, dicts from texts to one of these, or one of these or None. Those that have a default
    may be missing. Fields in ``ready`` are what they are to be, of any type.

    Raises:
        KeyError: a field is missing.
        TypeError: something is of another type, or no field has that name.
        ValueError: a number is out of range.
    """
    if not isinstance(data, dict):
        raise TypeError(f"{type(data).__name__} in place of a dict")
    checks: dict[str, tuple[Callable[[Any], Any], bool]] = _checks(kind)  # type: ignore[arg-type]
    unknown = next((name for name in data if name not in checks), None)
    if unknown is not None:
        raise TypeError(f"unknown field {unknown!r}")
    values = dict(ready)
    for name, (check, is_needed) in checks.items():
        if name not in ready and (name in data or is_needed):
            values[name] = check(data[name])
    return kind(**values)


@cache
def _checks(kind: type) -> dict[str, tuple[Callable[[Any], Any], bool]]:
    """Return what checks each field, and whether it has to be there."""
    hints = typing.get_type_hints(kind)
    found = {}
    for field in fields(kind):
        is_needed = field.default is MISSING and field.default_factory is MISSING
        found[field.name] = (_check(hints[field.name]), is_needed)
    return found


def _check(hint: Any) -> Callable[[Any], Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        (one,) = (_check(each) for each in arguments if each is not types.NoneType)
        return lambda value: maybe(one, value)
    if origin in (tuple, Sequence):
        item = _check(arguments[0])
        return lambda value: items(item, value)
    if origin in (dict, Mapping):
        value_of = _check(arguments[1])
        return lambda value: mapping(value_of, value)
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: restored(hint, value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda value: hint(text(value))
    return {str: text, int: whole, float: _number, bool: _flag}.get(hint, _refused)


def _refused(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} where only what is ready can stand")


def _number(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise TypeError(f"{type(value).__name__} in place of a number")
    if not math.isfinite(value):
        raise ValueError("a number out of range")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{type(value).__name__} in place of true or false")
    return value
