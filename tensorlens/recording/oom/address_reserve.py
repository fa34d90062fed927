"""A reserve of address space, released to explain a failed allocation.

The module is cheap to import, and safe when memory has run out. The reserve is never written to, so
it takes no memory; only a limit on addresses counts it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tensorlens.interpreter import reentrant_lock

if TYPE_CHECKING:
    from tensorlens.recording.recordings import Recording

_SIZE = 64 << 20
_lock = reentrant_lock()
_wanted = 0
_given_up = 0
_held: mmap.mmap | None = None


def reserve() -> None:
    """Take the reserve; calls nest."""
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
    """Make the reserve available meanwhile."""
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


def explain(error: BaseException, recording: Recording | None = None) -> None:
    """Add an explanation to ``error`` if it is a failed allocation.

    Raises only exceptions of signal handlers.

    Args:
        error: the exception that leaves the region.
        recording: recording of the region, ended or not.
    """
    if not may_be_out_of_memory(error):
        return
    with released():
        try:
            from tensorlens.recording.oom.annotation import annotate
        except Exception:
            # not even our own code could be loaded any more
            with suppress(Exception):
                error.add_note("\ntensorlens: out of memory: too little is left to explain it")
            return
        annotate(error, recording)


def may_be_out_of_memory(error: BaseException) -> bool:
    """Return, quickly, whether an error may be a failed allocation or come from one."""
    if is_of_a_kind(error) or isinstance(error, ExceptionGroup):
        return True
    return isinstance(error, Exception) and error.__cause__ is not None


def is_of_a_kind(error: BaseException) -> bool:
    """Return whether an error has a type of failed allocations."""
    # TensorFlow's own type derives from no other
    name = type(error).__name__
    return isinstance(error, MemoryError | RuntimeError) or name == "ResourceExhaustedError"
