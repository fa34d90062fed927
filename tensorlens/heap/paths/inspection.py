"""Looks into objects of known types, running nothing of theirs."""

from __future__ import annotations

import collections
import gc
from dataclasses import dataclass
from itertools import compress, count, groupby, repeat
from operator import is_
from types import BuiltinFunctionType, FunctionType
from typing import Any

from tensorlens.heap import attributes, reference_names
from tensorlens.heap.attributes import is_subtype, name_of_type, qualname_of_type
from tensorlens.heap.native import native
from tensorlens.heap.paths.nodes import PathNode
from tensorlens.records.references import Reference


@dataclass(frozen=True, slots=True)
class PathStep:
    """A reference, or None for what adds nothing to read."""

    reference: Reference | None
    nodes: int = 1
    """How many nodes of the path it covers."""
    is_root: bool = False
    """Whether it names its own place, so that what was written before is dropped."""
    root_index: int = 0
    """Which of those nodes the path is said to begin with."""


_BUILTIN_NAME = BuiltinFunctionType.__dict__["__name__"].__get__
_MAXLEN = collections.deque.__dict__["maxlen"].__get__


def kind_name(node: PathNode) -> str:
    """Return the name of an object's type."""
    return "tuple" if node.items is not None else name_of_type(type(node.object))


def owner_name(node: PathNode) -> str:
    """Return how the type of an object with attributes is called: ``Trainer``."""
    return qualname_of_type(type(node.object)).rpartition("<locals>.")[2]


def is_of(node: PathNode, kind: type) -> bool:
    """Tell whether an object's type derives from ``kind``."""
    return node.items is None and is_subtype(type(node.object), kind)


def length(node: PathNode) -> int | None:
    """Return how many items a container has."""
    if node.items is not None:
        return len(node.items)
    for kind in (list, dict, set, frozenset, collections.deque, tuple):
        if is_of(node, kind):
            # a type's own function, not that of a derived one
            return kind.__len__(node.object)
    return None


def limit(node: PathNode) -> int | None:
    """Return how many items a deque can have."""
    return _MAXLEN(node.object) if is_of(node, collections.deque) else None


def spare(node: PathNode, child: PathNode) -> int | None:
    """Return how many places at one end of a list or dict hold the same object, None for none.

    That is what is left of ``[None] * 100`` which is being filled. None are spare where the same
    stands as often in between: then it is put there, too. Those at the beginning are spare where
    the latest item, ``child``, is nearer to them than to the end: a list that is appended to may
    have begun with some.
    """
    places: Any = ()
    if is_of(node, list):
        places = list.__iter__(node.object)
    elif is_of(node, dict):
        places = iter([*dict.values(node.object)])
    items = [*map(id, places)]
    runs = [(item, sum(1 for _ in several)) for item, several in groupby(items)]
    if len(runs) < 2 or child.address not in items:
        return None
    place = items.index(child.address)
    is_near_start = place - runs[0][1] < len(items) - 1 - place
    ends = [runs[-1], runs[0]] if is_near_start else [runs[-1]]
    best, length = max(ends, key=lambda run: run[1])
    inside = [run[1] for run in runs if run[0] == best]
    is_filler = length > 1 or best == id(None)
    is_longest = max(inside) == length and inside.count(length) == 1
    return length if is_filler and is_longest else None


def index_of(node: PathNode, child: PathNode) -> int | None:
    """Return the place of an item, None where it is not found or the container is changing."""
    if node.items is not None:
        places = [place for place, item in enumerate(node.items) if id(item) == child.address]
        return places[0] if places else None
    items: Any = ()
    for kind in (list, collections.deque, tuple):
        if is_of(node, kind):
            items = kind.__iter__(node.object)
    if child.items is not None:
        found = compress(count(), map(child.address.__eq__, map(id, items)))
    else:
        found = compress(count(), map(is_, items, repeat(child.object)))
    try:
        return next(found, None)
    except RuntimeError:
        return None


_NOTHING = object()


def key_of(node: PathNode, child: PathNode) -> Any:
    """Return the key under which a dict has a value; :func:`has_key` tells whether it has."""
    entries = node.object
    if not is_of(node, dict):
        return _NOTHING
    same = map(child.address.__eq__, map(id, dict.values(entries)))
    try:
        return next(compress(dict.keys(entries), same), _NOTHING)
    except RuntimeError:
        return _NOTHING


def has_key(key: Any) -> bool:
    """Tell whether :func:`key_of` found a key."""
    return key is not _NOTHING


def entry(variables: Any, name: str) -> Any:
    """Return the value of an exact text among a plain dict's keys."""
    if type(variables) is not dict:
        return None
    for key, value in [*dict.items(variables)]:
        if type(key) is str and key == name:
            return value
    return None


def attributes_of(node: PathNode) -> Any:
    """Return an object's ``__dict__``, whose type is nothing but what is known here."""
    return attributes.dict_of(node.object)


def is_dict_of(node: PathNode, child: PathNode) -> bool:
    """Tell whether ``child`` is the ``__dict__`` of an object."""
    if node.items is not None or type(child.object) is not dict:
        return False
    reader = native()
    if reader is not None:
        return reader.dict_address(node.object) == child.address
    return attributes.dict_of(node.object) is child.object


def attribute_of(node: PathNode, child: PathNode) -> str:
    """Return the name of the attribute that refers to an object, or its type in ``<>``."""
    held = child.object
    if child.items is not None:
        # the exact tuple: it is held by the object, so it can be looked at
        same = (each for each in gc.get_referents(node.object) if id(each) == child.address)
        held = next(same, None)
    if held is None:
        return "<tuple>"
    reader = native()
    name = None if reader is None else reader.inline_name(node.object, held)
    return name or str(reference_names.ReferenceNames().step(node.object, held)[1])


def callable_name(found: Any) -> str:
    """Return how a function is called: ``Trainer.step``; of others, their type's name."""
    if type(found) is FunctionType:
        return short_name(found.__qualname__)
    if type(found) is BuiltinFunctionType:
        return str(_BUILTIN_NAME(found))
    return name_of_type(type(found))


def short_name(qualified: str) -> str:
    """Return a qualified name without ``<locals>``."""
    return qualified.replace("<locals>.", "")
