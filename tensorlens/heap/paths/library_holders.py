"""References of the standard library's holders: caches, queues and methods."""

from __future__ import annotations

import contextvars
import functools
import gc
import queue
from collections.abc import Sequence
from types import MethodType
from typing import Any

from tensorlens.heap.paths import inspection
from tensorlens.heap.paths.inspection import PathStep
from tensorlens.heap.paths.nodes import PathNode
from tensorlens.records.references import Reference

_LRU: Any = functools._lru_cache_wrapper


def _of_lru_cache(nodes: Sequence[PathNode]) -> PathStep | None:
    wrapper, child = nodes[:2]
    attributes = inspection.attributes_of(wrapper)
    name = inspection.entry(attributes, "__qualname__")
    name = inspection.short_name(name) if type(name) is str else "?"
    if inspection.is_dict_of(wrapper, child) and len(nodes) > 2:
        key = inspection.key_of(child, nodes[2])
        if type(key) is str and key == "__wrapped__":
            return PathStep(None, 2)
        text = f"{name}.{key if type(key) is str else '?'} (function attribute)"
        return PathStep(Reference("function attribute", text), 2, True)
    if child.object is inspection.entry(attributes, "__wrapped__"):
        return PathStep(None)
    size = limit = None
    if any(held is vars(functools)["_CacheInfo"] for held in gc.get_referents(wrapper.object)):
        _, _, limit, size = _LRU.cache_info(wrapper.object)
    reference = Reference("cache", f"{name} (lru_cache, maxsize={limit})", "", size, limit)
    # the cache itself is a dict of its own
    is_inside = type(child.object) is dict and len(nodes) > 2
    return PathStep(reference, 1 + is_inside, True)


def _of_method(nodes: Sequence[PathNode]) -> PathStep:
    method, child = nodes[0].object, nodes[1]
    if child.object is method.__func__:
        return PathStep(None)
    return PathStep(
        Reference("bound method", f"{inspection.callable_name(method.__func__)} (bound method)")
    )


def _of_context(nodes: Sequence[PathNode]) -> PathStep:
    taken = 1
    while taken < len(nodes) - 1 and inspection.kind_name(nodes[taken]).startswith("hamt"):
        taken += 1
    child = nodes[taken]
    name = "?"
    for variable, value in contextvars.Context.items(nodes[0].object):
        if id(value) == child.address:
            name = variable.name
    return PathStep(Reference("context variable", f"{name} (context variable)"), taken)


def _of_simple_queue(nodes: Sequence[PathNode]) -> PathStep:
    holder, child = nodes[:2]
    length = queue.SimpleQueue.qsize(holder.object)
    is_inside = type(child.object) is list and len(nodes) > 2
    return PathStep(Reference("queue", "SimpleQueue", "", length), 1 + is_inside)


def _of_queue(nodes: Sequence[PathNode]) -> PathStep | None:
    """Return the item of a queue, which is an instance with a deque, a list or a heap."""
    taken = 1 + inspection.is_dict_of(nodes[0], nodes[1])
    if len(nodes) <= taken + 1:
        return None
    attributes = inspection.attributes_of(nodes[0])
    items = nodes[taken]
    if inspection.entry(attributes, "queue") is not items.object:
        return None
    place = inspection.index_of(items, nodes[taken + 1])
    limit = inspection.entry(attributes, "maxsize")
    limit = limit if type(limit) is int and limit > 0 else None
    text = f"{inspection.owner_name(nodes[0])}[{'…' if place is None else place}]"
    return PathStep(Reference("queue", text, "", inspection.length(items), limit), taken + 1)


RULES: tuple[tuple[Any, Any], ...] = (
    (_LRU, _of_lru_cache),
    (MethodType, _of_method),
    (contextvars.Context, _of_context),
    (queue.SimpleQueue, _of_simple_queue),
)
"""Rules for exactly these types."""

DERIVED: tuple[tuple[Any, Any], ...] = ((queue.Queue, _of_queue),)
"""Rules for these types and those that derive from them."""
