"""Text of the reference from one object of a path to the next, by the type of the first."""

from __future__ import annotations

import collections
import functools
import gc
import queue
from collections.abc import Callable, Sequence
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    TracebackType,
)
from typing import Any

from tensorlens.heap.attributes import TRANSPARENT, entry, mro, name_of_type
from tensorlens.heap.frames import SUSPENDED, TEMPORARY, label, locals_of
from tensorlens.heap.native import How
from tensorlens.heap.paths import inspection
from tensorlens.heap.paths.inspection import PathStep
from tensorlens.heap.paths.nodes import PathNode
from tensorlens.records.references import Reference

_StepRule = Callable[[Sequence[PathNode]], PathStep | None]

_LRU: Any = functools._lru_cache_wrapper

_KINDS = {
    GeneratorType: "generator",
    CoroutineType: "coroutine",
    AsyncGeneratorType: "async generator",
}


def next_step(nodes: Sequence[PathNode], before: Reference | None) -> PathStep:
    """Return the step of a path from the first of ``nodes``."""
    holder = nodes[0]
    if holder.is_tuple:
        return _item_step(nodes) or PathStep(None)
    rule = _EXACT_RULES.get(id(type(holder.object)))
    if rule is not None:
        step = rule(nodes)
        if step is not None:
            return step
    for kind, derived in _BASE_RULES:
        if inspection.is_of(holder, kind):
            step = derived(nodes)
            if step is not None:
                return step
    return _instance_step(nodes, before)


def _transparent_step(nodes: Sequence[PathNode]) -> PathStep:
    return PathStep(None, 1)


def _item_step(nodes: Sequence[PathNode]) -> PathStep | None:
    holder, child = nodes[:2]
    place = inspection.index_of(holder, child)
    if place is None:
        return None
    text = f"{inspection.kind_name(holder)}[{place}]"
    length, limit = inspection.length(holder), inspection.limit(holder)
    return PathStep(Reference("item", text, "", length, limit, inspection.spare(holder, child)))


def _dict_step(nodes: Sequence[PathNode]) -> PathStep | None:
    holder, child = nodes[:2]
    place = child.holders[holder]
    name, length = inspection.kind_name(holder), inspection.length(holder)
    if place.how == How.VALUE:
        spare = inspection.spare(holder, child)
        return PathStep(Reference("item", f"{name}[{place.text}]", "", length, None, spare))
    if type(holder.object) is dict or not inspection.is_dict_of(holder, child):
        return PathStep(Reference("key", f"{name}{{key}}", "", length))
    return None


def _set_step(nodes: Sequence[PathNode]) -> PathStep:
    holder = nodes[0]
    text = inspection.kind_name(holder) + "{…}"
    return PathStep(Reference("item", text, "", inspection.length(holder)))


def _function_step(nodes: Sequence[PathNode]) -> PathStep | None:
    """Return the step through a function's closure, default or attribute."""
    function, child = nodes[0].object, nodes[1]
    name = inspection.short_name(function.__qualname__)
    how = child.holders[nodes[0]].how
    if len(nodes) > 2:
        inner = nodes[2].holders[child]
        word = inner.key or "?"
        if how == How.CLOSURE:
            names = function.__code__.co_freevars
            outer = function.__qualname__.rpartition(".<locals>.")[0]
            owner = f"{inspection.short_name(outer)}(): " if outer else ""
            variable = names[inner.index] if inner.index < len(names) else "?"
            reference = Reference("closure", f"{owner}{variable} (closure)")
            return PathStep(reference, min(3, len(nodes) - 1), True, 2)
        if how == How.DEFAULTS:
            arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
            place = inner.index - (inspection.length(child) or 0)
            word = arguments[place] if 0 < -place <= len(arguments) else "?"
        if how in (How.DEFAULTS, How.KEYWORD_DEFAULTS):
            return PathStep(Reference("default", f"{name}({word}=...) (default)"), 2, True)
        if how == How.VARS:
            text = f"{name}.{word} (function attribute)"
            return PathStep(Reference("function attribute", text), 2, True)
    return PathStep(Reference("function", f"{name} (function)"), 1, True)


def _suspended_step(nodes: Sequence[PathNode]) -> PathStep:
    holder = nodes[0].object
    kind = type(holder)
    frame = getattr(holder, SUSPENDED[kind].frame)
    word = _KINDS[kind]
    name = f"{inspection.short_name(holder.__qualname__)}()"
    if type(frame) is not FrameType:
        return PathStep(Reference(word, f"{name} ({word})"))
    return _variable_step(nodes, frame, word, f" ({word})")


def _frame_step(nodes: Sequence[PathNode]) -> PathStep:
    """Return the step through a variable of a frame that a traceback keeps."""
    if type(nodes[1].object) is FrameType:
        return PathStep(None)
    return _variable_step(nodes, nodes[0].object, "frame", "")


def _variable_step(nodes: Sequence[PathNode], frame: FrameType, kind: str, suffix: str) -> PathStep:
    function = label(frame.f_code)
    child = nodes[1]
    is_cell = type(child.object) is CellType and len(nodes) > 2
    for name, address, content, _ in locals_of(frame):
        if child.address in (address, content) and not name.startswith("."):
            return PathStep(Reference(kind, f"{function}{name}{suffix}"), 1 + is_cell)
    return PathStep(Reference(kind, f"{function}{TEMPORARY}"))


def _lru_cache_step(nodes: Sequence[PathNode]) -> PathStep | None:
    wrapper, child = nodes[:2]
    attributes = inspection.attributes_of(wrapper)
    name = entry(attributes, "__qualname__")
    name = inspection.short_name(name) if type(name) is str else "?"
    if inspection.is_dict_of(wrapper, child) and len(nodes) > 2:
        key = nodes[2].holders[child].key
        if key == "__wrapped__":
            return PathStep(None, 2)
        text = f"{name}.{key or '?'} (function attribute)"
        return PathStep(Reference("function attribute", text), 2, True)
    if child.object is entry(attributes, "__wrapped__"):
        return PathStep(None)
    size = limit = None
    if any(held is vars(functools)["_CacheInfo"] for held in gc.get_referents(wrapper.object)):
        _, _, limit, size = _LRU.cache_info(wrapper.object)
    reference = Reference("cache", f"{name} (lru_cache, maxsize={limit})", "", size, limit)
    # the wrapper keeps its results in a dict
    is_inside = type(child.object) is dict and len(nodes) > 2
    return PathStep(reference, 1 + is_inside, True)


def _method_step(nodes: Sequence[PathNode]) -> PathStep:
    method, child = nodes[0].object, nodes[1]
    if child.object is method.__func__:
        return PathStep(None)
    return PathStep(
        Reference("bound method", f"{inspection.callable_name(method.__func__)} (bound method)")
    )


def _simple_queue_step(nodes: Sequence[PathNode]) -> PathStep:
    holder, child = nodes[:2]
    length = queue.SimpleQueue.qsize(holder.object)
    is_inside = type(child.object) is list and len(nodes) > 2
    return PathStep(Reference("queue", "SimpleQueue", "", length), 1 + is_inside)


def _queue_step(nodes: Sequence[PathNode]) -> PathStep | None:
    """Return the step to an item of a queue, whose ``queue`` is a deque or a list."""
    covered = 1 + inspection.is_dict_of(nodes[0], nodes[1])
    if len(nodes) <= covered + 1:
        return None
    attributes = inspection.attributes_of(nodes[0])
    items = nodes[covered]
    if entry(attributes, "queue") is not items.object:
        return None
    place = inspection.index_of(items, nodes[covered + 1])
    limit = entry(attributes, "maxsize")
    limit = limit if type(limit) is int and limit > 0 else None
    text = f"{inspection.owner_name(nodes[0])}[{'…' if place is None else place}]"
    return PathStep(Reference("queue", text, "", inspection.length(items), limit), covered + 1)


def _instance_step(nodes: Sequence[PathNode], before: Reference | None) -> PathStep:
    holder, child = nodes[:2]
    owner = inspection.owner_name(holder)
    covered = 1
    if inspection.is_dict_of(holder, child):
        if len(nodes) == 2:
            return PathStep(Reference("attribute", f"{owner}.__dict__ (attribute)"))
        place = nodes[2].holders[child]
        name = place.key or (f"[{place.text}]" if place.text else "?")
        covered = 2
    else:
        name = inspection.attribute_of(holder, child)
    rest = nodes[covered:]
    if len(rest) > 1 and inspection.is_of(rest[0], dict):
        registered = _registry_reference(name, owner, rest, before)
        if registered is not None:
            return PathStep(registered, covered + 1)
    if inspection.is_of(holder, BaseException):
        if name == "__traceback__":
            return PathStep(Reference("traceback", "traceback"), covered)
        if name in ("__cause__", "__context__"):
            return PathStep(Reference("exception", name), covered)
    if name == "<OrderedDict>" and _derives(holder, "TensorBase") and len(rest) > 1:
        return PathStep(Reference("hook", f"{owner} hook"), covered + 1)
    if name.startswith("<") and _derives(holder, "TensorBase"):
        if "Backward" in name or name == "<AccumulateGrad>":
            return PathStep(Reference("graph", "grad_fn"), covered)
    if name.startswith("<"):
        return PathStep(Reference("attribute", owner), covered)
    kind = _kind(name, holder)
    return PathStep(Reference(kind, f"{owner}.{name} ({kind})"), covered)


def _registry_reference(
    name: str, owner: str, rest: Sequence[PathNode], before: Reference | None
) -> Reference | None:
    key = rest[1].holders[rest[0]].key
    if name in TRANSPARENT and key is not None:
        return Reference("attribute", f"{owner}.{key} (attribute)")
    if name.startswith("_") and name.endswith("_hooks"):
        words = name.strip("_").removesuffix("s").replace("_", " ")
        length = inspection.length(rest[0])
        return Reference("hook", f"{_module_name(owner, before)} {words}", "", length)
    return None


def _module_name(owner: str, before: Reference | None) -> str:
    """Return the module's name in the reference before it, else its type's name."""
    if before is not None and before.kind in ("attribute", "global", "local", "class attribute"):
        name = before.text.removesuffix(f" ({before.kind})").rpartition(" ")[2]
        last = name.rpartition(".")[2]
        return last if last.isidentifier() else name
    return owner


def _kind(name: str, holder: PathNode) -> str:
    if name == "state" and _derives(holder, "Optimizer"):
        return "optimizer state"
    if name in ("_result", "_exception") and _derives(holder, "Future"):
        return "future"
    return "attribute"


def _derives(holder: PathNode, name: str) -> bool:
    return any(name_of_type(kind) == name for kind in mro(type(holder.object)))


_EXACT_RULES: dict[int, _StepRule] = {
    id(kind): rule
    for kind, rule in (
        (CellType, _transparent_step),
        (staticmethod, _transparent_step),
        (classmethod, _transparent_step),
        (property, _transparent_step),
        (TracebackType, _transparent_step),
        (FrameType, _frame_step),
        (FunctionType, _function_step),
        *((kind, _suspended_step) for kind in SUSPENDED),
        (_LRU, _lru_cache_step),
        (MethodType, _method_step),
        (queue.SimpleQueue, _simple_queue_step),
    )
}

_BASE_RULES: tuple[tuple[type, _StepRule], ...] = (
    (queue.Queue, _queue_step),
    (list, _item_step),
    (tuple, _item_step),
    (collections.deque, _item_step),
    (dict, _dict_step),
    (set, _set_step),
    (frozenset, _set_step),
)
