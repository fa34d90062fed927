"""The interpreter beside the program: locks, threads and pauses of the collector of our own."""

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
"""Signals that a thread gives itself; a blocked one ends the process without a word."""
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_own_threads: set[int] = set()
"""Numbers of those that run."""


def reentrant_lock() -> threading.RLock:
    """Return a reentrant lock; in a forked process it is free, unless its holder is who forked.

    The thread that held one does not exist there.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def start_thread(function: Callable[..., None], *arguments: Any) -> None:
    """Run a function that raises nothing, in a thread that ends with the process.

    The program does not see it, nor lose signals to it: ``threading`` knows nothing of it, and
    would with ``threading.current_thread()`` in it.

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
        # a thread has the mask of who starts it
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        _thread.start_new_thread(run, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def is_own_thread() -> bool:
    """Tell whether :func:`start_thread` started this thread."""
    return threading.get_ident() in _own_threads


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Let no garbage collection begin meanwhile; afterwards it is as it was.

    The collector looks at every new object again and again while many are made.
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
