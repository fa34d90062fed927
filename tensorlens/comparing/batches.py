"""The largest batch under a capacity, by bisection: each batch is tried in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorlens.comparing.launching import run_trial
from tensorlens.frameworks.trials import CANNOT, OUT_OF_MEMORY, Measured, Result, Trial, Trouble

MOST = 1 << 24
"""The largest batch that is tried where none is named."""
_STEPS = 2
"""Optimizers make their state in the first step; the second has all of it from its beginning."""


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for."""

    trial: Trial
    capacity: int
    lowest: int = 1
    highest: int | None = None
    multiple: int = 1
    """Batches are multiples of it."""


@dataclass(frozen=True, slots=True)
class Found:
    """The largest batch; 0 where not even the smallest fits, None where it cannot be told."""

    batch: int | None
    beyond: str
    """What became of the next one; or why it cannot be told."""
    tried: tuple[int, ...] = ()


def run_search(search: Search) -> Found:
    """Find the largest batch that runs under the capacity, when the next one does not."""
    return _Search(search).largest()


class _Search:
    def __init__(self, search: Search) -> None:
        self._search = search
        self._peaks: dict[int, int] = {}
        self._refused: dict[int, Trouble] = {}

    def largest(self) -> Found:
        search, unit = self._search, self._search.multiple
        low = -(-search.lowest // unit)
        high = (search.highest or MOST) // unit
        if not self._fits(low):
            trouble = self._refused[low]
            is_no_answer = trouble.kind != OUT_OF_MEMORY and not _may_be_memory(trouble)
            return self._found(None if is_no_answer else 0, self._said(low))
        fitting, too_large, step = low, high + 1, low
        while too_large - fitting > 1:
            guess = self._guess(fitting, too_large, step)
            step *= 2
            if self._fits(guess):
                fitting = guess
            else:
                too_large = guess
        if too_large > high:
            return self._found(fitting * unit, "the largest that was to be tried")
        return self._found(fitting * unit, self._said(too_large))

    def _found(self, batch: int | None, beyond: str) -> Found:
        unit = self._search.multiple
        tried = sorted(each * unit for each in (*self._peaks, *self._refused))
        return Found(batch, beyond, tuple(tried))

    def _said(self, number: int) -> str:
        trouble = self._refused[number]
        why = "out of memory" if trouble.kind == OUT_OF_MEMORY else trouble.text
        return why if trouble.kind == CANNOT else f"{number * self._search.multiple:,}: {why}"

    def _fits(self, number: int) -> bool:
        search = self._search
        trial = replace(
            search.trial,
            batch=number * search.multiple,
            limit=search.capacity,
            warmup=0,
            steps=_STEPS,
        )
        result: Result = run_trial(trial)
        if isinstance(result, Measured):
            self._peaks[number] = result.peak_allocated
            return True
        self._refused[number] = result
        return False

    def _guess(self, fitting: int, too_large: int, step: int) -> int:
        """Return the next to try: where a line through the peaks known meets the capacity.

        The line is aimed at in turns a little below and above, and given up for the middle after a
        few tries: peaks need not lie on one.
        """
        known = sorted(self._peaks)
        halfway = (fitting + too_large) // 2
        if len(known) < 2 and too_large > self._end():
            return min(fitting + step, too_large - 1)
        tries = len(self._peaks) + len(self._refused)
        slope = self._slope(known)
        if slope <= 0 or tries > 8:
            return halfway if self._refused else min(2 * fitting, too_large - 1)
        reach = fitting + int((self._search.capacity - self._peaks[fitting]) / slope)
        if reach >= too_large:
            reach = too_large - 1
        return max(fitting + 1, reach)

    def _slope(self, known: list[int]) -> float:
        if len(known) < 2:
            return 0.0
        one, other = known[-2], known[-1]
        return (self._peaks[other] - self._peaks[one]) / (other - one)

    def _end(self) -> int:
        return (self._search.highest or MOST) // self._search.multiple


def _may_be_memory(trouble: Trouble) -> bool:
    return trouble.text.startswith("the process was ended by")
