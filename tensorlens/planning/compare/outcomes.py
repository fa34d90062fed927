"""What becomes of an option: its runs, its estimate on a card, its largest batch; and its row."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.planning.compare.options import Option
from tensorlens.planning.compare.result import Outcome, Status
from tensorlens.planning.estimate.api import StepsRequest
from tensorlens.planning.estimate.batches import largest_batch, largest_that_fits
from tensorlens.planning.estimate.target import STEPS
from tensorlens.planning.estimate.verdict import culprits
from tensorlens.planning.processes import ProgramFailed, Runner, shared_runner
from tensorlens.planning.trials.jobs import Job, Measured, Reason, Result, Trouble
from tensorlens.units import format_bytes

_LIMIT = "the largest that was to be tried"
# the system's killer, and what C++ does where nobody catches bad_alloc; SIGSEGV may be any crash
_SIGNALS_WITHOUT_MEMORY = ("SIGKILL", "SIGABRT")


@dataclass(frozen=True, slots=True)
class BatchSearch:
    """A search for the largest batch."""

    job: Job
    capacity: int
    lowest: int = 1
    highest: int | None = None
    multiple: int = 1
    """Batches are multiples of it."""

    @property
    def name(self) -> str:
        """The option's."""
        return self.job.name


@dataclass(frozen=True, slots=True)
class BatchSearchResult:
    """The largest batch; 0 where not even the smallest fits, None where it cannot be told."""

    batch: int | None
    beyond: str
    """Result of the next larger one; or why it cannot be told."""


def run_search(search: BatchSearch) -> BatchSearchResult:
    """Find the largest batch that runs under the capacity, when the next one does not."""
    refused: dict[int, Trouble] = {}

    # from a fresh process: what is mapped before a limit is to be the same
    with Runner() as processes:

        def needed(batch: int) -> int | None:
            job = replace(
                search.job,
                batch=batch,
                limit=search.capacity,
                # a larger one would leave memory mapped that then counts as room
                rehearsal=search.multiple,
                warmup=0,
                steps=STEPS,
            )
            result = processes.run(job)
            if isinstance(result, Measured):
                return min(result.peak_allocated, search.capacity)
            assert isinstance(result, Trouble)
            refused[batch] = result
            return None

        fitting, too_large = largest_that_fits(
            needed, search.capacity, search.lowest, search.highest, search.multiple
        )
    trouble = refused.get(too_large)
    if trouble is None:
        return BatchSearchResult(fitting, _LIMIT)
    if trouble.kind is Reason.CANNOT:
        return BatchSearchResult(fitting or None, trouble.text)
    is_memory = trouble.kind is Reason.OUT_OF_MEMORY
    beyond = f"{too_large:,}: {'out of memory' if is_memory else trouble.text}"
    is_known = fitting or is_memory or trouble.signal in _SIGNALS_WITHOUT_MEMORY
    return BatchSearchResult(fitting if is_known else None, beyond)


NO_CAPACITY = BatchSearchResult(None, "no capacity was given")
NO_BATCH = BatchSearchResult(None, "a script takes no batch")


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """An option to be estimated."""

    option: Option
    request: StepsRequest
    lowest: int = 1
    """Of the batches that are looked for where the request has a capacity."""
    highest: int | None = None

    @property
    def name(self) -> str:
        """The option's."""
        return self.option.name


@dataclass(frozen=True, slots=True)
class EstimateOutcome:
    """Needs of one option, and the device that they are of."""

    outcome: Outcome
    device: str
    card: str


def run_estimate(asked: EstimateRequest) -> EstimateOutcome | Trouble:
    """Estimate one option; whatever becomes of it, an answer says so."""
    request = asked.request
    if "alloc_conf" in request.job.choice.settings and request.spec.card is None:
        return Trouble(Reason.CANNOT, "alloc_conf is of CUDA's caching allocator, and this is cpu")
    try:
        # what an option leaves behind in a process of fake tensors must not meet the next one
        with Runner() if request.job.framework == "torch" else shared_runner() as processes:
            batch = _largest_batch(asked, processes)
            answer = request.ask(processes)
    except ProgramFailed as error:
        return error.trouble
    except UsageError as error:
        return Trouble(Reason.FAILED, str(error))
    except TensorlensError as error:
        return Trouble(Reason.CANNOT, str(error))
    # an estimate never has times or losses: that is not worth a reason
    missing = {"largest_batch": batch.beyond} if batch.batch is None else {}
    peak = answer.allocated.point
    outcome = Outcome(
        asked.name,
        asked.option.settings,
        peak_allocated=peak,
        peak_reserved=answer.peak_reserved,
        setup_allocated=answer.steps[0].allocated,
        least_capacity=answer.needed.point,
        largest_batch=batch.batch,
        beyond="" if batch.batch is None else batch.beyond,
        peaks=(peak,),
        notes=tuple(caution.text for caution in answer.warnings),
        at_peak=dict(culprits(answer.without_source())),
        missing=missing,
    )
    return EstimateOutcome(outcome, answer.device, "" if answer.card is None else answer.card.name)


def _largest_batch(asked: EstimateRequest, runner: Runner) -> BatchSearchResult:
    request, spec = asked.request, asked.request.spec
    if spec.capacity is None:
        return NO_CAPACITY
    if spec.card is None:
        return BatchSearchResult(None, "estimated for cuda only")
    if request.job.batch is None:
        return NO_BATCH
    found = largest_batch(
        lambda batch: request.with_argument("", batch).ask(runner),
        spec.capacity,
        asked.lowest,
        asked.highest,
        multiple=request.job.choice.settings.get("accumulate", 1),
    )
    largest, beyond = found.estimate.largest, ""
    assert largest is not None
    if largest.next_needed is not None:
        beyond = f"{largest.next_batch:,} would need {format_bytes(largest.next_needed)}"
    elif largest.is_limit:
        beyond = _LIMIT
    return BatchSearchResult(largest.batch, beyond)


def outcome_of(
    option: Option, results: Sequence[Result | EstimateOutcome], found: BatchSearchResult | Trouble
) -> Outcome:
    """Return what became of one option in all repeats; one that failed decides."""
    trouble = next((each for each in results if isinstance(each, Trouble)), None)
    if trouble is not None:
        return Outcome(
            option.name,
            option.settings,
            status=Status.FAILED if trouble.kind is Reason.USAGE else Status(trouble.kind),
            why=" ".join(trouble.text.split()),
            details=trouble.details,
        )
    if isinstance(results[0], EstimateOutcome):
        return results[0].outcome
    runs = [each for each in results if isinstance(each, Measured)]
    first = runs[0]
    peaks = tuple(each.peak_allocated for each in runs)
    missing = dict(first.missing)
    reserved = [each.peak_reserved for each in runs if each.peak_reserved is not None]
    least = max(peaks) if first.device == "cpu" else None
    if least is None:
        missing["least_capacity"] = (
            "measured runs tell what was reserved; an estimate tells the least that is enough"
        )
    batch = BatchSearchResult(None, found.text) if isinstance(found, Trouble) else found
    if batch.batch is None:
        missing["largest_batch"] = batch.beyond
    return Outcome(
        option.name,
        option.settings,
        peak_allocated=max(peaks),
        peak_reserved=max(reserved, default=None),
        setup_allocated=first.setup_allocated,
        least_capacity=least,
        largest_batch=batch.batch,
        beyond="" if batch.batch is None else batch.beyond,
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
