"""The largest batch under a capacity, by bisection: each batch is tried in a process of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tensorlens.planning.estimate.batches import MOST, largest_that_fits
from tensorlens.planning.processes import Runner
from tensorlens.planning.trials.jobs import Job, Measured, Reason, Trouble

_STEPS = 2
"""Optimizers make their state in the first step; the second has all of it from its beginning."""


@dataclass(frozen=True, slots=True)
class BatchSearch:
    """A search for the largest batch."""

    job: Job
    capacity: int
    lowest: int = 1
    highest: int | None = None
    multiple: int = 1
    """Batches are multiples of it."""


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest batch; 0 where not even the smallest fits, None where it cannot be told."""

    batch: int | None
    beyond: str
    """Result of the next larger one; or why it cannot be told."""
    tried: tuple[int, ...] = ()


def run_search(search: BatchSearch) -> LargestBatch:
    """Find the largest batch that runs under the capacity, when the next one does not."""
    with Runner() as runner:
        return _Search(search, runner).largest()


class _Search:
    def __init__(self, search: BatchSearch, runner: Runner) -> None:
        self._search = search
        self._runner = runner
        self._peaks: dict[int, int] = {}
        self._refused: dict[int, Trouble] = {}

    def largest(self) -> LargestBatch:
        search, unit = self._search, self._search.multiple
        low = -(-search.lowest // unit)
        high = (search.highest or MOST) // unit
        fitting, too_large = largest_that_fits(self._fits, self._guess, low, high)
        if not fitting:
            trouble = self._refused[low]
            is_no_answer = trouble.kind is not Reason.OUT_OF_MEMORY and not _may_be_memory(trouble)
            return self._found(None if is_no_answer else 0, self._said(low))
        if too_large > high:
            return self._found(fitting * unit, "the largest that was to be tried")
        return self._found(fitting * unit, self._said(too_large))

    def _found(self, batch: int | None, beyond: str) -> LargestBatch:
        unit = self._search.multiple
        tried = sorted(each * unit for each in (*self._peaks, *self._refused))
        return LargestBatch(batch, beyond, tuple(tried))

    def _said(self, number: int) -> str:
        trouble = self._refused[number]
        why = "out of memory" if trouble.kind is Reason.OUT_OF_MEMORY else trouble.text
        return (
            why if trouble.kind is Reason.CANNOT else f"{number * self._search.multiple:,}: {why}"
        )

    def _fits(self, number: int) -> bool:
        search = self._search
        job = replace(
            search.job,
            batch=number * search.multiple,
            limit=search.capacity,
            # what it took stays mapped in part, and would count as room
            rehearsal=search.multiple,
            warmup=0,
            steps=_STEPS,
        )
        result = self._runner.run(job)
        if isinstance(result, Measured):
            self._peaks[number] = result.peak_allocated
            return True
        assert isinstance(result, Trouble)
        self._refused[number] = result
        return False

    def _guess(self, fitting: int, too_large: int) -> int:
        """Return the next to try.

        Until one is too large, where a line through the peaks known meets the capacity, at least
        twice and at most 16 times the largest that fits. Then the middle, of the logarithms while
        the two are far apart; in turns with that line, as peaks need not lie on one.
        """
        slope = self._slope(sorted(self._peaks))
        room = self._search.capacity - self._peaks[fitting]
        reach = fitting + int(room / slope) if slope > 0 else 16 * fitting
        if not self._refused:
            return min(max(reach, 2 * fitting), 16 * fitting, too_large - 1)
        if too_large > 4 * fitting:
            return math.isqrt(fitting * too_large)
        if len(self._refused) % 2 and fitting < reach < too_large:
            return reach
        return (fitting + too_large) // 2

    def _slope(self, known: list[int]) -> float:
        if len(known) < 2:
            return 0.0
        one, other = known[-2], known[-1]
        return (self._peaks[other] - self._peaks[one]) / (other - one)


def _may_be_memory(trouble: Trouble) -> bool:
    return trouble.text.startswith("the process was ended by")
