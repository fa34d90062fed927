"""The heap's objects without the tuples, one of which another thread may be making right now.

``tuple(iterable)`` makes a tuple in steps, and fails with ``SystemError`` when somebody else holds
it as its maker goes on (``_PyTuple_Resize`` of ``Objects/tupleobject.c``). ``gc.get_objects()``
holds it, and wherever Python code runs, another thread may get its turn.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import chain, compress, repeat
from operator import is_, is_not
from typing import Any

from tensorlens.heap.rows import MODULES, is_subtype, vars_of_module


def without_tuples() -> list[Any]:
    """Return the heap's objects, but for tuples; types derived from ``tuple`` are none."""
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


def held_tuples(objects: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the tuples that objects hold, and those that these hold.

    Whoever holds a tuple has it from its maker, who is done with it. A module is asked for its
    globals alone: ``_asyncio`` of Python 3.12 tells of objects that are gone.
    """
    kinds = {id(kind): kind for kind in map(type, objects)}
    modules = {number for number, kind in kinds.items() if is_subtype(kind, MODULES)}
    holders = [each for each in objects if id(type(each)) not in modules]
    holders += [vars_of_module(each) for each in objects if id(type(each)) in modules]
    found: dict[int, tuple[Any, ...]] = {}
    while holders:
        held = gc.get_referents(*holders)
        tuples = compress(held, map(is_, map(type, held), repeat(tuple)))
        fresh = {id(each): each for each in tuples if id(each) not in found}
        found |= fresh
        holders = [*fresh.values()]
    return [*found.values()]
