"""Threads of tensorlens's own, which the program neither sees nor loses signals to."""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

_own: set[int] = set()
"""Numbers of those that run."""
_FAULTS = {
    getattr(signal, name, None) for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")
}
"""Signals that a thread gives itself; a blocked one ends the process without a word."""


def start(function: Callable[..., None], *arguments: Any) -> None:
    """Run a function that raises nothing, in a thread that ends with the process.

    ``threading`` knows nothing of it, and would with ``threading.current_thread()`` in it.

    Raises:
        RuntimeError: no thread is left.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # a thread has the mask of who starts it
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        _thread.start_new_thread(_run, (function, arguments))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def is_own() -> bool:
    """Tell whether this thread is one of them."""
    return threading.get_ident() in _own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own.clear)


def _run(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    _own.add(threading.get_ident())
    try:
        function(*arguments)
    finally:
        _own.discard(threading.get_ident())
