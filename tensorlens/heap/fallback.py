"""A coarse search of the heap in Python: slow, for where nothing can be compiled.

It runs no code of the objects it looks at: types' own functions are applied to them.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterator, Mapping
from itertools import chain, compress, repeat
from operator import is_not
from types import CellType, FunctionType
from typing import Any, NamedTuple

from tensorlens.heap.attributes import MODULES, TRANSPARENT, dict_of, is_subtype, vars_of_module
from tensorlens.heap.reference_names import ReferenceNames
from tensorlens.records.names import ATTRIBUTE, INDEX, KEY, Names

_DEPTH = 8
"""References of a name, at most."""
_ALIAS = -1
"""What goes by its holder's name."""
_NAMESPACE = -2
"""A dict that goes by its holder's name, and whose entries are attributes."""
_UNKNOWN = -3
"""What its holder has at a place that is not known yet."""


def without_tuples() -> list[Any]:
    """Return the heap's objects, but for tuples; types derived from ``tuple`` are none.

    ``tuple(iterable)`` makes a tuple in steps, and fails with ``SystemError`` when somebody else
    holds it as its maker goes on (``_PyTuple_Resize`` of ``Objects/tupleobject.c``).
    ``gc.get_objects()`` holds it, and wherever Python code runs, another thread may get its turn.
    """
    found: list[Any] = []
    kept: list[Any] = []
    fetch: Any = map(gc.get_objects, (None,))
    steps = chain(
        filter(None, map(found.extend, fetch)),
        compress(found, map(is_not, map(type, found), repeat(tuple))),
        filter(None, map(list.clear, (found,))),
    )
    # one call, in which no other code runs: all are fetched, chosen from and let go
    kept.extend(steps)
    others = list(compress(kept, map(is_not, kept, repeat(kept))))
    # it holds itself
    kept.clear()
    return others


def select(
    objects: list[Any], kinds: tuple[type, ...], exact: tuple[type, ...]
) -> tuple[list[Any], ...]:
    """Return the objects of each kind, and those whose type is one of ``exact``, in order."""
    exactly = set(map(id, exact))
    types = {id(kind): kind for kind in map(type, objects)}.values()
    chosen = [{id(kind) for kind in types if is_subtype(kind, base)} for base in kinds]
    return tuple([each for each in objects if id(type(each)) in of] for of in (*chosen, exactly))


def find_names(
    objects: list[Any],
    tuples: list[tuple[Any, ...]],
    targets: array[int],
    begin: Mapping[int, int | str],
    names: Names,
) -> array[int]:
    """Return the node of each target's name, or -1: by the fewest steps from where names begin.

    Args:
        objects: the heap.
        tuples: those of variables.
        targets: addresses.
        begin: by address the node or the text that a name begins with, the best first. A plain
            dict whose text is that of no variable has a module's globals.
        names: takes the new nodes.
    """
    alive = {id(each): each for each in (*objects, *tuples) if id(each) in begin}
    level = [
        (alive[address], type(alive[address]) is dict and "(" not in str(text))
        for address, text in begin.items()
        if address in alive
    ]
    closed = {*begin, id(objects), id(tuples), id(alive), id(level)}
    left = set(targets).difference(begin)
    references: dict[int, _Reference] = {}
    for _ in range(_DEPTH):
        holders, level = level, []
        for holder, is_namespace in holders if left else ():
            for reference in _references(holder, is_namespace):
                address = id(reference.child)
                is_new = address not in references and address not in closed
                if is_new and (address in left or gc.is_tracked(reference.child)):
                    references[address] = reference
                    left.discard(address)
                    level.append((reference.child, reference.kind == _NAMESPACE))
    known: dict[int, int] = {}
    steps = ReferenceNames()
    return array(
        "i", [_node(address, begin, references, known, names, steps) for address in targets]
    )


class _Reference(NamedTuple):
    holder: Any
    child: Any
    kind: int
    value: Any = None


def _references(holder: Any, is_namespace: bool) -> Iterator[_Reference]:
    kind = type(holder)
    if is_subtype(kind, MODULES):
        # _asyncio of Python 3.12 shows freed objects
        yield _Reference(holder, vars_of_module(holder), _NAMESPACE)
        return
    if is_subtype(kind, dict):
        for key, value in [*dict.items(holder)]:
            how = ATTRIBUTE if is_namespace and type(key) is str else KEY
            is_passed = how == ATTRIBUTE and key in TRANSPARENT and is_subtype(type(value), dict)
            yield _Reference(holder, value, _NAMESPACE if is_passed else how, key)
    for plain in (list, tuple):
        if is_subtype(kind, plain):
            items = enumerate(plain.__iter__(holder))
            yield from (_Reference(holder, item, INDEX, place) for place, item in items)
    if any(kind is plain for plain in (list, tuple, dict)):
        return
    # a function would make one
    attributes = dict_of(holder) if kind is not FunctionType else None
    entries: set[int] = set()
    if type(attributes) is dict:
        yield _Reference(holder, attributes, _NAMESPACE)
        # from 3.13 on an object refers to its attributes beside the dict of them
        entries = {id(attributes), *map(id, dict.values(attributes))}
    for child in gc.get_referents(holder):
        if id(child) in entries:
            continue
        if type(child) is dict and is_subtype(kind, type):
            yield _Reference(holder, child, _NAMESPACE)
        else:
            yield _Reference(holder, child, _ALIAS if kind is CellType else _UNKNOWN)


def _node(
    address: int,
    begin: Mapping[int, int | str],
    references: Mapping[int, _Reference],
    known: dict[int, int],
    names: Names,
    steps: ReferenceNames,
) -> int:
    path = []
    while address in references and address not in known:
        path.append(references[address])
        address = id(references[address].holder)
    if address not in known:
        text = begin.get(address, -1)
        known[address] = names.text(text) if isinstance(text, str) else text
    node = known[address]
    for holder, child, kind, value in reversed(path):
        if kind == _UNKNOWN:
            kind, value = steps.step(holder, child)
        if kind == INDEX:
            node = names.index(node, value)
        elif kind == KEY:
            node = names.key(node, value)
        elif kind >= 0:
            node = names.attribute(node, value)
        known[id(child)] = node
    return node
