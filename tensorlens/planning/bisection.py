"""The largest batch that fits, between one that does and one that does not."""

from __future__ import annotations

from collections.abc import Callable

MOST = 1 << 24
"""The largest batch that is tried where none is named."""


def largest_that_fits(
    fits: Callable[[int], bool], guess: Callable[[int, int], int], lowest: int, highest: int
) -> tuple[int, int]:
    """Return the largest that fits, 0 where not even the lowest does, and the next larger.

    Args:
        fits: tries one; what is larger than one that does not fit does not fit either.
        guess: gives the next to try between the largest known to fit and the smallest known not
            to, or ``highest + 1``.
        lowest: the smallest worth trying.
        highest: the largest.
    """
    if not fits(lowest):
        return 0, lowest
    fitting, too_large = lowest, highest + 1
    while too_large - fitting > 1:
        between = guess(fitting, too_large)
        if fits(between):
            fitting = between
        else:
            too_large = between
    return fitting, too_large
