"""Values read from a file, each checked for its type before a record takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tensorlens.errors import FileFormatError

_T = TypeVar("_T")
_LIMIT = 2**64


def text(value: Any) -> str:
    """Return ``value``, a text.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} in place of a text")
    return value


def integer(value: Any) -> int:
    """Return ``value``, a whole number of at most 64 bits and a sign.

    Raises:
        TypeError: it is something else.
        ValueError: it is out of range.
    """
    if type(value) is not int:
        raise TypeError(f"{type(value).__name__} in place of a whole number")
    if not -_LIMIT < value < _LIMIT:
        raise ValueError("a number out of range")
    return value


def flag(value: Any) -> bool:
    """Return ``value``, true or false.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{type(value).__name__} in place of true or false")
    return value


def optional(check: Callable[[Any], _T], value: Any) -> _T | None:
    """Return None for None, else what ``check`` makes of ``value``."""
    return None if value is None else check(value)


def items(check: Callable[[Any], _T], value: Any) -> tuple[_T, ...]:
    """Return what ``check`` makes of each item of a list.

    Raises:
        TypeError: ``value`` is no list.
    """
    if not isinstance(value, list | tuple):
        raise TypeError(f"{type(value).__name__} in place of a list")
    return tuple(map(check, value))


def mapping(check: Callable[[Any], _T], value: Any) -> dict[str, _T]:
    """Return a dict of texts to what ``check`` makes of its values.

    Raises:
        TypeError: ``value`` is no dict.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} in place of a dict")
    return {text(key): check(item) for key, item in value.items()}


def check_schema(data: Any, schema: str, version: int, kind: str) -> None:
    """Raise FileFormatError unless ``data`` says that it is this schema in this version."""
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise FileFormatError(f"not a tensorlens {kind}")
    if data.get("version") != version:
        raise FileFormatError(
            f"{kind} of version {data.get('version')!r}; this tensorlens reads {version}"
        )
