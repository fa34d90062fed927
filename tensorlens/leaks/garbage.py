"""Whether Python's collector works while a loop runs."""

from __future__ import annotations

import gc


class Collections:
    """Asks after each step whether cycles are collected, at a few microseconds.

    Args:
        warmup: how many steps at the beginning do not count.
    """

    def __init__(self, warmup: int = 0) -> None:
        self._warmup = warmup
        self._last = 0
        """The last step that ended with a collector that runs, or that somebody ran."""
        self._runs = _runs()
        # to count them takes the longer the more there are
        self._frozen = gc.get_freeze_count()

    def step_ended(self, step: int) -> None:
        """Say that a step has ended, and how many have by now."""
        runs = _runs()
        if runs != self._runs or (gc.isenabled() and gc.get_threshold()[0] > 0):
            self._last = step
        self._runs = runs
        if step == self._warmup:
            self._frozen = gc.get_freeze_count()

    @property
    def is_off(self) -> bool:
        """Whether nothing was collected after the warm-up, nor will be."""
        return self._last <= self._warmup

    @property
    def is_frozen(self) -> bool:
        """Whether objects were frozen after the warm-up."""
        return gc.get_freeze_count() > self._frozen

    def resume(self) -> None:
        """Say that collections up to now were not the program's."""
        self._runs = _runs()


def _runs() -> int:
    """Return how many times the oldest generation was collected."""
    return int(gc.get_stats()[-1]["collections"])
