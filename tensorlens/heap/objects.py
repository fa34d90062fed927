"""The objects of the heap, all of them or those of some types, without running code of theirs."""

from __future__ import annotations

import gc
from itertools import chain, compress, repeat
from operator import is_not
from typing import Any

from tensorlens.heap.attributes import is_subtype
from tensorlens.heap.native import native


def live_objects() -> list[Any]:
    """Return the heap's objects except exact tuples; see :func:`without_tuples`."""
    reader = native()
    return without_tuples() if reader is None else reader.objects()


def without_tuples() -> list[Any]:
    """Return the heap's objects except exact tuples, without the native reader.

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
    objects: list[Any], kinds: tuple[type, ...], exact: tuple[type, ...] = ()
) -> tuple[list[Any], ...]:
    """Return, for each kind, the objects whose type derives from it, in order.

    A last list has those whose type is itself one of ``exact``, which may be hundreds. Only the
    type counts, never ``__class__``, and no code of a metaclass runs.
    """
    reader = native()
    if reader is not None:
        return reader.select(objects, kinds, exact)
    types = {id(kind): kind for kind in map(type, objects)}.values()
    chosen = [{id(kind) for kind in types if is_subtype(kind, base)} for base in kinds]
    chosen.append(set(map(id, exact)))
    return tuple([each for each in objects if id(type(each)) in kept] for kept in chosen)


def instances(*kinds: type) -> list[Any]:
    """Return the heap's objects of these classes, and of those derived from them, each once.

    Not found are objects that the garbage collector does not track or ``gc.freeze()`` set aside.
    """
    found: dict[int, Any] = {}
    for each in select(live_objects(), kinds):
        found.update((id(item), item) for item in each)
    return [*found.values()]
