"""The living instances of classes."""

from __future__ import annotations

import gc
from itertools import chain, compress, starmap, tee
from typing import Any


def living(*kinds: type) -> list[Any]:
    """Return all objects of these classes, and of those derived from them, that are alive.

    What is not tracked by the garbage collector, and what ``gc.freeze()`` set aside, is not seen.
    """
    # by address: a metaclass may compare and hash as it likes
    wanted: dict[int, type] = {}
    waiting = [*kinds]
    while waiting:
        kind = waiting.pop()
        if id(kind) not in wanted:
            wanted[id(kind)] = kind
            waiting += type.__subclasses__(kind)
    # The heap has tuples that other threads are still making, which fails for them while one is
    # referred to. So from the heap to what is kept of it it takes one call, during which no other
    # thread runs, and no name is left for an iterator, which would hold its last objects beyond.
    items, typed = tee(chain.from_iterable(starmap(gc.get_objects, [()])))
    picked = [compress(items, map(wanted.__contains__, map(id, map(type, typed))))]
    del items, typed
    return list(picked.pop())
