"""The way out of a profiled or recorded region: cheap to import, and safe where memory ran out."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tensorlens.recording.oom import reserve

if TYPE_CHECKING:
    from tensorlens.recording.recordings import Recording


def explain(error: BaseException, recording: Recording | None = None) -> None:
    """Add to ``error`` what a person needs to know of it, if it is a failed allocation.

    Raises only what handlers of signals raise.

    Args:
        error: what leaves the region.
        recording: what recorded the region, ended or not.
    """
    if not may_be_out_of_memory(error):
        return
    with reserve.released():
        try:
            from tensorlens.recording.oom.annotation import annotate
        except Exception:
            # not even our own code could be loaded any more
            with suppress(Exception):
                error.add_note("\ntensorlens: out of memory: too little is left to explain it")
            return
        annotate(error, recording)


def may_be_out_of_memory(error: BaseException) -> bool:
    """Tell quickly whether an error can be a failed allocation, or come from one."""
    if is_of_a_kind(error) or isinstance(error, ExceptionGroup):
        return True
    return isinstance(error, Exception) and error.__cause__ is not None


def is_of_a_kind(error: BaseException) -> bool:
    """Tell whether an error is of a type that a failed allocation is raised as."""
    # TensorFlow's own type derives from no other
    name = type(error).__name__
    return isinstance(error, MemoryError | RuntimeError) or name == "ResourceExhaustedError"
