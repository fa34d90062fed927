"""Results of an option: largest measured batches, estimates, and the row made of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.planning.compare.options import Option
from tensorlens.planning.compare.result import Outcome, Status
from tensorlens.planning.estimate.api import StepsRequest
from tensorlens.planning.estimate.batches import largest_that_fits, search_largest_batch
from tensorlens.planning.estimate.target import STEPS
from tensorlens.planning.estimate.verdict import culprits
from tensorlens.planning.processes import ProgramFailed, Runner, shared_runner
from tensorlens.planning.trials.jobs import Failure, FailureKind, Job, Measurement, Result
from tensorlens.units import format_bytes

_LIMIT = "the largest that was to be tried"
_SIGNALS_WITHOUT_MEMORY = ("SIGKILL", "SIGABRT")
"""Signals of the out-of-memory killer, and of C++ after bad_alloc; SIGSEGV may be any crash."""


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest batch that fits."""

    batch: int | None
    """0: not even the smallest fits; None: unknown."""
    beyond: str = ""
    """Result of the next larger batch, or that none was to be tried."""
    missing: str = ""
    """Why the batch is unknown."""


class EstimatedOption(NamedTuple):
    """An option's estimate, and the device it is for."""

    outcome: Outcome
    device: str


NO_CAPACITY = LargestBatch(None, missing="no capacity was given")
NO_BATCH = LargestBatch(None, missing="a script takes no batch")


def largest_measured_batch(
    job: Job, capacity: int, lowest: int = 1, highest: int | None = None, multiple: int = 1
) -> LargestBatch:
    """Find the largest batch, a multiple of ``multiple``, that runs within the capacity."""
    refused: dict[int, Failure] = {}

    # a fresh process, so that the same memory is mapped before every limit
    with Runner() as processes:

        def needed(batch: int) -> int | None:
            trial = replace(
                job,
                batch=batch,
                limit=capacity,
                # a larger one would leave mapped memory that adds to the capacity
                rehearsal=multiple,
                warmup=0,
                steps=STEPS,
            )
            result = processes.run(trial)
            if isinstance(result, Measurement):
                return min(result.peak_allocated, capacity)
            assert isinstance(result, Failure)
            refused[batch] = result
            return None

        fitting, too_large = largest_that_fits(needed, capacity, lowest, highest, multiple)
    failure = refused.get(too_large)
    if failure is None:
        return LargestBatch(fitting, _LIMIT)
    if failure.kind is FailureKind.CANNOT:
        why, is_known = failure.text, bool(fitting)
    else:
        is_memory = failure.kind is FailureKind.OUT_OF_MEMORY
        why = f"{too_large:,}: {'out of memory' if is_memory else failure.text}"
        is_known = bool(fitting) or is_memory or failure.signal in _SIGNALS_WITHOUT_MEMORY
    return LargestBatch(fitting, why) if is_known else LargestBatch(None, missing=why)


def run_estimate(
    option: Option, request: StepsRequest, lowest: int, highest: int | None
) -> EstimatedOption | Failure:
    """Estimate one option; an error becomes a :class:`Failure`.

    The request's capacity, if it has one, is for the largest batch from ``lowest`` to ``highest``.
    """
    if "alloc_conf" in request.job.variant.settings and request.spec.card is None:
        text = "alloc_conf is of CUDA's caching allocator, and this is cpu"
        return Failure(FailureKind.CANNOT, text)
    try:
        # an option may leave traces in a process of torch: each option gets one of its own
        with Runner() if request.job.framework == "torch" else shared_runner() as processes:
            largest = _largest_estimated_batch(request, lowest, highest, processes)
            answer = request.run(processes)
    except ProgramFailed as error:
        return error.failure
    except UsageError as error:
        return Failure(FailureKind.FAILED, str(error))
    except TensorlensError as error:
        return Failure(FailureKind.CANNOT, str(error))
    peak = answer.allocated.point
    outcome = Outcome(
        option.name,
        option.settings,
        peak_allocated=peak,
        peak_reserved=answer.peak_reserved,
        setup_allocated=answer.steps[0].allocated,
        least_capacity=answer.needed.point,
        largest_batch=largest.batch,
        beyond=largest.beyond,
        peaks=(peak,),
        notes=tuple(caution.text for caution in answer.warnings),
        at_peak=dict(culprits(answer.without_source())),
        # no estimate has times or losses: those need no reason
        missing={"largest_batch": largest.missing} if largest.batch is None else {},
    )
    return EstimatedOption(outcome, answer.device)


def _largest_estimated_batch(
    request: StepsRequest, lowest: int, highest: int | None, runner: Runner
) -> LargestBatch:
    spec = request.spec
    if spec.capacity is None:
        return NO_CAPACITY
    if spec.card is None:
        return LargestBatch(None, missing="estimated for cuda only")
    if request.job.batch is None:
        return NO_BATCH
    multiple = request.job.variant.settings.get("accumulate", 1)
    found = search_largest_batch(request, runner, lowest, highest, multiple=multiple)
    largest, beyond = found.estimate.largest, ""
    assert largest is not None
    if largest.next_needed is not None:
        beyond = f"{largest.next_batch:,} would need {format_bytes(largest.next_needed)}"
    elif largest.is_limit:
        beyond = _LIMIT
    return LargestBatch(largest.batch, beyond)


def outcome_of(
    option: Option, results: Sequence[Result | EstimatedOption], largest: LargestBatch | Failure
) -> Outcome:
    """Return the row of an option from the results of its repeats; one failure makes it failed."""
    failure = next((each for each in results if isinstance(each, Failure)), None)
    if failure is not None:
        return Outcome(
            option.name,
            option.settings,
            status=Status.FAILED if failure.kind is FailureKind.USAGE else Status(failure.kind),
            why=" ".join(failure.text.split()),
            details=failure.details,
        )
    if isinstance(results[0], EstimatedOption):
        return results[0].outcome
    runs = [each for each in results if isinstance(each, Measurement)]
    first = runs[0]
    peaks = tuple(each.peak_allocated for each in runs)
    missing = dict(first.missing)
    reserved = [each.peak_reserved for each in runs if each.peak_reserved is not None]
    least = max(peaks) if first.device == "cpu" else None
    if least is None:
        missing["least_capacity"] = (
            "measured runs tell what was reserved; an estimate tells the least that is enough"
        )
    if isinstance(largest, Failure):
        largest = LargestBatch(None, missing=largest.text)
    if largest.batch is None:
        missing["largest_batch"] = largest.missing
    return Outcome(
        option.name,
        option.settings,
        peak_allocated=max(peaks),
        peak_reserved=max(reserved, default=None),
        setup_allocated=first.setup_allocated,
        least_capacity=least,
        largest_batch=largest.batch,
        beyond=largest.beyond,
        held_ahead=max((each.held_ahead for each in runs if each.held_ahead), default=None),
        peaks=peaks,
        step_peaks=tuple(
            statistics.median_high(each.step_peaks) for each in runs if each.step_peaks
        ),
        seconds=tuple(statistics.median(each.seconds) for each in runs if each.seconds),
        losses=tuple(loss if math.isfinite(loss) else None for loss in first.losses or ()),
        notes=first.notes,
        at_peak=dict(first.at_peak),
        missing=missing,
    )
