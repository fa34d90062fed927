"""The largest batch under a capacity, by bisection: each batch is tried in a process of its own."""

from __future__ import annotations

from contextlib import nullcontext
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


def run_search(search: BatchSearch, runner: Runner | None = None) -> LargestBatch:
    """Find the largest batch that runs under the capacity, when the next one does not."""
    unit = search.multiple
    refused: dict[int, Trouble] = {}
    tried: list[int] = []

    def needed(number: int) -> int | None:
        tried.append(number * unit)
        job = replace(
            search.job,
            batch=number * unit,
            limit=search.capacity,
            # what it took stays mapped in part, and would count as room
            rehearsal=unit,
            warmup=0,
            steps=_STEPS,
        )
        result = processes.run(job)
        if isinstance(result, Measured):
            return min(result.peak_allocated, search.capacity)
        assert isinstance(result, Trouble)
        refused[number] = result
        return None

    low, high = -(-search.lowest // unit), (search.highest or MOST) // unit
    with nullcontext(runner) if runner is not None else Runner() as processes:
        fitting, too_large = largest_that_fits(needed, search.capacity, low, high)
    batch: int | None = fitting * unit
    trouble = refused.get(too_large)
    if trouble is None:
        return LargestBatch(batch, "the largest that was to be tried", tuple(sorted(tried)))
    is_memory = trouble.kind is Reason.OUT_OF_MEMORY
    beyond = f"{too_large * unit:,}: {'out of memory' if is_memory else trouble.text}"
    if trouble.kind is Reason.CANNOT:
        beyond = trouble.text
    if not fitting and not is_memory and not trouble.text.startswith("the process was ended by"):
        batch = None
    return LargestBatch(batch, beyond, tuple(sorted(tried)))
