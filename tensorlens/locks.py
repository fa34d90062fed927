"""Locks that are free in a forked process, where the thread that held one does not exist."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_made: weakref.WeakSet[Any] = weakref.WeakSet()


def reentrant() -> threading.RLock:
    """Return a reentrant lock; in a forked process it is free, unless its holder is who forked."""
    lock = threading.RLock()
    _made.add(lock)
    return lock


def _free_in_child() -> None:
    for lock in [*_made]:
        if not lock._is_owned():
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_child)
