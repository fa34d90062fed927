"""The heap's objects without the tuples, one of which another thread may be making right now.

``tuple(iterable)`` makes a tuple in steps, and fails with ``SystemError`` when somebody else holds
it as its maker goes on (``_PyTuple_Resize`` of ``Objects/tupleobject.c``). ``gc.get_objects()``
holds it, and wherever Python code runs, another thread may get its turn.
"""

from __future__ import annotations

import gc
from itertools import chain, compress, repeat
from operator import is_not
from typing import Any


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
