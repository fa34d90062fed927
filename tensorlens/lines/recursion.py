"""Room for the frames a wrapper adds to a function that calls itself.

Each call of a decorated function is three Python frames instead of one, so that a recursion
1,000 deep would end at 333. The recursion limit is raised by what the wrappers have taken, a
step at a time, and lowered again on the way back.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from tensorlens.lines.threads import ThreadState

ADDED_FRAMES = 2
"""The wrapper, and what hands the arguments over: see tensorlens.lines.wrapping."""

STEP = 50
"""Nested profiled calls after which the limit is raised again."""


def lend(thread: ThreadState) -> None:
    """Raise the limit if the call that begins now begins a new step."""
    height = len(thread.stack)
    if height and height % STEP == 0:
        _raise_by(thread, _room(height))


def give_back(thread: ThreadState, height: int) -> None:
    """Undo :func:`lend` when the call that began at ``height`` is over."""
    if height and height % STEP == 0:
        _raise_by(thread, -min(_room(height), thread.lent))


def give_back_all(thread: ThreadState) -> None:
    """Undo every :func:`lend` of the thread."""
    _raise_by(thread, -thread.lent)


def _room(height: int) -> int:
    # the first time also for the step that was taken before
    return STEP * ADDED_FRAMES * (2 if height == STEP else 1)


def _raise_by(thread: ThreadState, frames: int) -> None:
    # too deep for the lower limit only if the program has set one of its own meanwhile
    with suppress(RecursionError, ValueError):
        sys.setrecursionlimit(sys.getrecursionlimit() + frames)
        thread.lent += frames
