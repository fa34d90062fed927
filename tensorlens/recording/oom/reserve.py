"""Address space kept back, so that something is left to explain with when memory runs out.

Nothing is ever written there, so that it takes no memory; only a limit of addresses counts it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tensorlens.interpreter import reentrant_lock

_SIZE = 64 << 20
_lock = reentrant_lock()
_wanted = 0
_given_up = 0
_held: mmap.mmap | None = None


def reserve() -> None:
    """Keep it back from now on; calls nest."""
    global _wanted
    with _lock:
        _wanted += 1
        _take()


def release() -> None:
    """Undo one :func:`reserve`."""
    global _wanted
    with _lock:
        _wanted -= 1
        if not _wanted:
            _give()


@contextmanager
def released() -> Iterator[None]:
    """Let what is kept back be used meanwhile."""
    global _given_up
    with _lock:
        _given_up += 1
        _give()
    try:
        yield
    finally:
        with _lock:
            _given_up -= 1
            if _wanted:
                _take()


def _take() -> None:
    global _held
    if _held is None and not _given_up:
        # there may be no more left
        with suppress(OSError, ValueError, MemoryError):
            _held = mmap.mmap(-1, _SIZE)


def _give() -> None:
    global _held
    if _held is not None:
        _held.close()
        _held = None
