"""The garbage collector, which looks at every new object again and again while many are made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_OWN_FROZEN = 1000
"""More objects than an interpreter freezes itself when it starts: 3.12 some 400."""


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Let no collection begin meanwhile; afterwards it is as it was."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


def frozen_objects() -> int:
    """Return how many objects the program has hidden from the collector by ``gc.freeze()``."""
    count = gc.get_freeze_count()
    return count if count > _OWN_FROZEN else 0
