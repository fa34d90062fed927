"""Failed allocations explained, and addresses kept back for that.

Importing this is cheap, and safe when memory has run out. The reserve is never written to, so it
takes no memory; only a limit on addresses counts it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tensorlens.interpreter import reentrant_lock

if TYPE_CHECKING:
    from tensorlens.recording.recordings import Recording

_RESERVE_NBYTES = 64 << 20
_lock = reentrant_lock()
_wanted = 0
"""Calls of :func:`reserve` that were not undone."""
_explaining = 0
"""Regions of :func:`released` that run."""
_held: mmap.mmap | None = None


def reserve() -> None:
    """Keep addresses back; calls nest."""
    _count(wanted=1)


def release() -> None:
    """Undo one :func:`reserve`."""
    _count(wanted=-1)


@contextmanager
def released() -> Iterator[None]:
    """Make the reserve available meanwhile."""
    _count(explaining=1)
    try:
        yield
    finally:
        _count(explaining=-1)


def _count(wanted: int = 0, explaining: int = 0) -> None:
    """Change the counts, then take the reserve or give it back as they say."""
    global _wanted, _explaining, _held
    with _lock:
        _wanted += wanted
        _explaining += explaining
        if not _wanted or _explaining:
            if _held is not None:
                _held.close()
            _held = None
        elif _held is None:
            # there may be no more left
            with suppress(OSError, ValueError, MemoryError):
                _held = mmap.mmap(-1, _RESERVE_NBYTES)


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
