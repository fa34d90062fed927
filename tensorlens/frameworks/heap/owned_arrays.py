"""NumPy arrays with memory of their own, which the collector does not show by itself."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensorlens.frameworks.heap.describe import type_name
from tensorlens.frameworks.heap.holders import select
from tensorlens.frameworks.heap.rows import MODULES
from tensorlens.records.names import key_text

_UNTRACKED = (tuple, dict)
"""What the heap does not show although it may hold an array."""
_AT_ONCE = 20_000
_DEEPEST = 4
_PLAIN = (list, deque)


@dataclass(frozen=True, slots=True, eq=False)
class Owned:
    """An array."""

    array: Any
    nbytes: int
    held_in: int
    """Tells apart what kind of object holds it: of those in objects of one class it is equal."""


def owned_arrays(objects: list[Any]) -> list[Owned]:
    """Return each array that an object of the heap, or a tuple in one, refers to.

    Only those of NumPy's own class that own their memory: views have none.
    """
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    if not isinstance(kind, type):
        return []
    base, size = kind.__dict__["base"].__get__, kind.__dict__["nbytes"].__get__
    return [
        Owned(array, size(array), held_in)
        for array, held_in in _arrays(kind, objects)
        if base(array) is None
    ]


def _arrays(kind: type, objects: list[Any]) -> Iterator[tuple[Any, int]]:
    seen: set[int] = set()
    for start in range(0, len(objects), _AT_ONCE):
        # a module's dict is an object by itself
        holders = [each for each in objects[start : start + _AT_ONCE] if type(each) is not MODULES]
        referents = gc.get_referents(*holders)
        arrays, others = select(referents, (kind,), _UNTRACKED)
        inner, _ = select(gc.get_referents(*others), (kind,), _UNTRACKED) if others else ([], [])
        if not arrays and not inner:
            continue
        held_in = _held_in(kind, [*holders, *others])
        for array in (*arrays, *inner):
            if type(array) is kind and id(array) not in seen:
                seen.add(id(array))
                yield array, held_in.get(id(array), 0)


def _held_in(kind: type, holders: list[Any]) -> dict[int, int]:
    """Return for each array the address of the list that holds it, or else of a class."""
    found: dict[int, int] = {}
    for holder in holders:
        for each in gc.get_referents(holder):
            if type(each) is kind:
                is_plain = any(type(holder) is plain for plain in _PLAIN)
                found[id(each)] = id(holder) if is_plain else id(type(holder))
    return found


def untracked_way(target: Any, objects: list[Any]) -> list[Any]:
    """Return what holds an object that only containers the collector does not track refer to.

    First the object of the heap that leads there, then the containers; nothing where there is
    none.
    """
    way: list[Any] = []
    for _ in range(_DEEPEST):
        inner = way[0] if way else target
        holder = _holder(inner, objects)
        if holder is None:
            return []
        way.insert(0, holder)
        if gc.is_tracked(holder):
            return way
    return []


def _holder(target: Any, objects: list[Any]) -> Any:
    """Return what refers to an object: one of the heap, or an untracked container in one."""
    for start in range(0, len(objects), _AT_ONCE):
        chunk = [each for each in objects[start : start + _AT_ONCE] if type(each) is not MODULES]
        found = _referrer(target, chunk)
        if found is not None:
            return found
        inner = select(gc.get_referents(*chunk), (), _UNTRACKED)[-1]
        found = _referrer(target, [each for each in inner if not gc.is_tracked(each)])
        if found is not None:
            return found
    return None


def _referrer(target: Any, objects: list[Any]) -> Any:
    """Return the one of some objects that refers to the target, by halves."""
    if not objects or not any(each is target for each in gc.get_referents(*objects)):
        return None
    while len(objects) > 1:
        half = objects[: len(objects) // 2]
        is_here = any(each is target for each in gc.get_referents(*half))
        objects = half if is_here else objects[len(half) :]
    return objects[0]


def item_text(holder: Any, item: Any) -> str:
    """Return how a plain container refers to an item: ``dict['obs']``, ``list[3]``."""
    if type(holder) is dict:
        keys = (key for key, value in [*dict.items(holder)] if value is item)
        for key in keys:
            return f"dict[{key_text(key)}]"
    for kind in (list, tuple, deque):
        if type(holder) is kind:
            return f"{kind.__name__}[{_index(kind.__iter__(holder), item)}]"
    return type_name(holder)


def _index(items: Iterator[Any], item: Any) -> int | str:
    return next((place for place, each in enumerate(items) if each is item), "?")
