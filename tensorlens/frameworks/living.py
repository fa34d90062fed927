"""The living instances of classes."""

from __future__ import annotations

import gc
from typing import Any


def living(*kinds: type) -> list[Any]:
    """Return all objects of these classes, and of those derived from them, that are alive.

    What is not tracked by the garbage collector, and what ``gc.freeze()`` set aside, is not seen.
    """
    wanted: set[type] = set()
    waiting = [*kinds]
    while waiting:
        kind = waiting.pop()
        if kind not in wanted:
            wanted.add(kind)
            waiting += type.__subclasses__(kind)
    return [item for item in gc.get_objects() if type(item) in wanted]
