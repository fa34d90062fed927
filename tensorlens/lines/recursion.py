"""Room for the frames a wrapper adds to a function that calls itself.

Each call of a decorated function is three Python frames instead of one, so that a recursion
1,000 deep would end at 333. The recursion limit is raised by what the wrappers have taken, a
step at a time, and lowered again on the way back.
"""

from __future__ import annotations

import sys
from contextlib import suppress

ADDED_FRAMES = 2
"""The wrapper, and what hands the arguments over: see tensorlens.lines.wrapping."""

STEP = 50
"""Nested profiled calls after which the limit is raised again."""


def lend(height: int) -> None:
    """Raise the limit if the call at this height of the profiled stack begins a new step."""
    if height and height % STEP == 0:
        sys.setrecursionlimit(sys.getrecursionlimit() + _room(height))


def give_back(height: int) -> None:
    """Undo :func:`lend` when the call at this height is over."""
    if height and height % STEP == 0:
        # too deep for the lower limit only if the program has set one of its own meanwhile
        with suppress(RecursionError, ValueError):
            sys.setrecursionlimit(sys.getrecursionlimit() - _room(height))


def _room(height: int) -> int:
    # the first time also for the step that was taken before
    return STEP * ADDED_FRAMES * (2 if height == STEP else 1)
