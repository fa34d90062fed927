"""Read the content and names of objects of known types without running their code."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from itertools import groupby
from types import BuiltinFunctionType, FunctionType
from typing import Any

from tensorlens.heap import attributes
from tensorlens.heap.attributes import is_subtype, name_of_type, qualname_of_type
from tensorlens.heap.native import How
from tensorlens.heap.paths.nodes import PathNode
from tensorlens.heap.reference_names import ReferenceNames
from tensorlens.records.names import INDEX
from tensorlens.records.references import Reference


@dataclass(frozen=True, slots=True)
class PathStep:
    """One step of a path: a reference, or None if it adds nothing to the text."""

    reference: Reference | None
    nodes: int = 1
    """Number of the path's nodes that it covers."""
    is_root: bool = False
    """Whether its text names a place by itself, so that the text before it is dropped."""
    root_index: int = 0
    """Index of the covered node at which the path then begins."""


_BUILTIN_NAME = BuiltinFunctionType.__dict__["__name__"].__get__
_MAXLEN = collections.deque.__dict__["maxlen"].__get__


def kind_name(node: PathNode) -> str:
    """Return the name of an object's type."""
    return "tuple" if node.is_tuple else name_of_type(type(node.object))


def owner_name(node: PathNode) -> str:
    """Return the qualified name of an object's type without its outer function: ``Trainer``."""
    return qualname_of_type(type(node.object)).rpartition("<locals>.")[2]


def is_of(node: PathNode, kind: type) -> bool:
    """Return whether an object's type derives from ``kind``."""
    return not node.is_tuple and is_subtype(type(node.object), kind)


def length(node: PathNode) -> int | None:
    """Return the number of items of a container; None for other objects."""
    if node.is_tuple:
        return node.length
    for kind in (list, dict, set, frozenset, collections.deque, tuple):
        if is_of(node, kind):
            # of the base type: a derived one may override it with Python code
            return kind.__len__(node.object)
    return None


def limit(node: PathNode) -> int | None:
    """Return a deque's ``maxlen``; None for other objects."""
    return _MAXLEN(node.object) if is_of(node, collections.deque) else None


def spare(node: PathNode, child: PathNode) -> int | None:
    """Return the number of filler items at one end of a list or dict; None if there are none.

    Filler is a run of one and the same item: the rest of a ``[None] * 100`` that is being filled.
    The item must have no other run as long. A run at the beginning counts only if ``child``, the
    latest item, is nearer to it than to the end: a list that is appended to may begin with one.
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
    """Return the index of an item; None if it is not found or the container is changing."""
    place = child.holders[node]
    if place.how == How.ITEM:
        return place.index
    if is_of(node, collections.deque):
        kind, value = ReferenceNames().step(node.object, child.address, "")
        return int(value) if kind == INDEX else None
    return None


def attributes_of(node: PathNode) -> Any:
    """Return an object's ``__dict__``; None if it has none."""
    return attributes.dict_of(node.object)


def is_dict_of(node: PathNode, child: PathNode) -> bool:
    """Return whether ``child`` is the ``__dict__`` of an object."""
    return child.holders[node].how == How.VARS


def attribute_of(node: PathNode, child: PathNode) -> str:
    """Return the name of the attribute that holds ``child``, or the type of ``child`` in ``<>``."""
    name = child.holders[node].key
    return name or str(ReferenceNames().step(node.object, child.address, kind_name(child))[1])


def callable_name(function: Any) -> str:
    """Return a function's name, ``Trainer.step``; the type's name of any other callable."""
    if type(function) is FunctionType:
        return short_name(function.__qualname__)
    if type(function) is BuiltinFunctionType:
        return str(_BUILTIN_NAME(function))
    return name_of_type(type(function))


def short_name(qualified: str) -> str:
    """Return a qualified name without ``<locals>``."""
    return qualified.replace("<locals>.", "")
