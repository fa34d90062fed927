"""How the reference from one object to the next reads, by what the first one is."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from types import (
    CellType,
    FrameType,
    FunctionType,
    TracebackType,
)

from tensorlens.frameworks.heap.paths import look, special
from tensorlens.frameworks.heap.paths.frame_steps import of_frame, of_function, of_suspended
from tensorlens.frameworks.heap.paths.instances import of_instance
from tensorlens.frameworks.heap.paths.nodes import Node
from tensorlens.frameworks.heap.paths.roots import CODES
from tensorlens.frameworks.heap.paths.step import Step
from tensorlens.records.leaks import Reference
from tensorlens.records.names import key_text

__all__ = ["Step", "next_step"]

_Rule = Callable[[Sequence[Node]], Step | None]


def next_step(nodes: Sequence[Node], before: Reference | None) -> Step:
    """Return how the way goes on from the first of ``nodes``, and over how many of them."""
    holder = nodes[0]
    if holder.items is not None:
        return _of_items(nodes) or Step(None)
    rule = _RULES.get(id(type(holder.object)))
    if rule is not None:
        step = rule(nodes)
        if step is not None:
            return step
    for kind, derived in _DERIVED:
        if look.is_of(holder, kind):
            step = derived(nodes)
            if step is not None:
                return step
    return special.of_asyncio(nodes) or of_instance(nodes, before)


def _transparent(nodes: Sequence[Node]) -> Step:
    return Step(None, 1)


def _of_items(nodes: Sequence[Node]) -> Step | None:
    holder, child = nodes[:2]
    place = look.index_of(holder, child)
    if place is None and holder.items is None:
        return None
    text = f"{look.kind_name(holder)}[{'…' if place is None else place}]"
    length, limit, spare = look.length(holder), look.limit(holder), look.spare(holder)
    return Step(Reference("item", text, "", length, limit, spare))


def _of_dict(nodes: Sequence[Node]) -> Step | None:
    holder, child = nodes[:2]
    key = look.key_of(holder, child)
    name, length = look.kind_name(holder), look.length(holder)
    if look.has_key(key):
        spare = look.spare(holder)
        return Step(Reference("item", f"{name}[{key_text(key)}]", "", length, None, spare))
    if type(holder.object) is dict or not look.is_dict_of(holder, child):
        return Step(Reference("key", f"{name}{{key}}", "", length))
    return None


def _of_set(nodes: Sequence[Node]) -> Step:
    holder = nodes[0]
    text = look.kind_name(holder) + "{…}"
    return Step(Reference("item", text, "", look.length(holder)))


_RULES: dict[int, _Rule] = {
    id(kind): rule
    for kind, rule in (
        (CellType, _transparent),
        (staticmethod, _transparent),
        (classmethod, _transparent),
        (property, _transparent),
        (TracebackType, _transparent),
        (FrameType, of_frame),
        (FunctionType, of_function),
        *((kind, of_suspended) for kind in CODES),
        *special.RULES,
    )
}

_DERIVED: tuple[tuple[type, _Rule], ...] = (
    *special.DERIVED,
    (list, _of_items),
    (tuple, _of_items),
    (collections.deque, _of_items),
    (dict, _of_dict),
    (set, _of_set),
    (frozenset, _of_set),
)
