"""Our own locks, threads and pauses of the collector, hidden from the program."""

from __future__ import annotations

import _thread
import contextlib
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_OWN_FROZEN = 1000
"""More objects than an interpreter freezes itself when it starts: 3.12 some 400."""
_FAULTS = {
    getattr(signal, name, None) for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")
}
"""Signals that a thread raises itself; if blocked, they end the process silently."""
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_own_threads: set[int] = set()
"""Identifiers of our running threads."""


def reentrant_lock() -> threading.RLock:
    """Return a reentrant lock; after a fork it is free unless the forking thread holds it.

    Other threads that held it do not exist in the child.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def start_thread(function: Callable[..., None], *arguments: Any) -> None:
    """Run a function that raises nothing, in a thread that ends with the process.

    The thread is unknown to ``threading``, unless it calls ``threading.current_thread()``, and
    takes no signals of the program.

    Raises:
        RuntimeError: no thread is left.
    """

    def run() -> None:
        _own_threads.add(threading.get_ident())
        try:
            function(*arguments)
        finally:
            _own_threads.discard(threading.get_ident())

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # a thread inherits the mask of its starter
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        _thread.start_new_thread(run, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def is_own_thread() -> bool:
    """Return whether :func:`start_thread` started this thread."""
    return threading.get_ident() in _own_threads


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Disable garbage collection inside a ``with`` block.

    While many objects are made, the collector would look at each of them again and again.
    """
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


def _renew_in_child() -> None:
    _own_threads.clear()
    for lock in [*_locks]:
        if not lock._is_owned():
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_in_child)
