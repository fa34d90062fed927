"""Options estimated on a card that need not be there, and the rows that their figures make."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.planning.compare.batches import LargestBatch
from tensorlens.planning.compare.options import Option
from tensorlens.planning.compare.result import Outcome, Status, finite
from tensorlens.planning.estimate.api import allocator_settings
from tensorlens.planning.estimate.batches import MaxBatch, largest_batch
from tensorlens.planning.estimate.cards import Place
from tensorlens.planning.estimate.result import Estimate, Range
from tensorlens.planning.estimate.target import StepsRequest
from tensorlens.planning.processes import ProgramFailed, Runner
from tensorlens.planning.trials.jobs import Choice, Measured, Program, Reason, Result, Trouble
from tensorlens.units import format_bytes


@dataclass(frozen=True, slots=True)
class Estimation:
    """An option to be estimated."""

    name: str
    request: StepsRequest
    lowest: int = 1
    """Of the batches that are looked for where the request has a capacity."""
    highest: int | None = None


@dataclass(frozen=True, slots=True)
class Estimated:
    """Needs of one option."""

    device: str
    card: str
    peak_allocated: int
    peak_reserved: int
    setup_allocated: int
    least_capacity: int
    """With what lies outside of the framework's memory."""
    largest_batch: int | None = None
    beyond: str = ""
    notes: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    peaks: Range | None = None
    """Between what bounds the peak is, where a part of it can only be bounded."""


def option_request(
    program: Program, choice: Choice, framework: str, where: Place, *, steps: int, batch: int | None
) -> StepsRequest:
    """Return what is estimated of a program with an option; the option may set the allocator."""
    return StepsRequest(
        program=program,
        place=where,
        steps=steps,
        settings=allocator_settings(choice.settings.get("alloc_conf")),
        choice=choice,
        framework=framework,
        world_size=choice.settings.get("shards", 1),
        batch=batch,
    )


def run_estimate(asked: Estimation, runner: Runner | None = None) -> Estimated | Trouble:
    """Estimate one option; whatever becomes of it, an answer says so.

    Args:
        asked: what is asked.
        runner: for steps that are traced; None: one for this estimate alone.
    """
    request = asked.request
    if "alloc_conf" in request.choice.settings and request.place.card is None:
        return Trouble(Reason.CANNOT, "alloc_conf is of CUDA's caching allocator, and this is cpu")
    # what an option leaves behind in a process of fake tensors must not meet the next one
    shared = runner if request.framework != "torch" else None
    try:
        with nullcontext(shared) if shared is not None else Runner() as processes:
            return _estimated(asked, processes)
    except ProgramFailed as error:
        return error.trouble
    except UsageError as error:
        return Trouble(Reason.FAILED, str(error))
    except TensorlensError as error:
        return Trouble(Reason.CANNOT, str(error))


def _estimated(asked: Estimation, runner: Runner) -> Estimated:
    request, capacity = asked.request, asked.request.place.capacity
    parts = request.choice.settings.get("accumulate", 1)
    batch = _Batch()
    if capacity is not None and request.place.card is not None:
        found = largest_batch(
            lambda number: request.with_batch(number * parts).ask(runner),
            capacity,
            -(-asked.lowest // parts),
            None if asked.highest is None else asked.highest // parts,
        )
        batch = _largest(found, parts)
    return _answer(request, request.ask(runner), batch)


@dataclass(frozen=True)
class _Batch:
    """The largest batch, where it was looked for."""

    number: int | None = None
    beyond: str = ""


def _largest(found: MaxBatch, parts: int) -> _Batch:
    batch, beyond = int(found) * parts, ""
    after = found.estimates.get(found + 1) or (None if found else found.estimate)
    if after is not None:
        beyond = f"{batch + parts:,} would need {format_bytes(after.needed.point)}"
    elif found.reaches_end:
        beyond = "the largest that was to be tried"
    return _Batch(batch, beyond)


def _answer(request: StepsRequest, answer: Estimate, batch: _Batch) -> Estimated:
    missing = {}
    if request.place.capacity is not None and request.place.card is None:
        missing["largest_batch"] = "estimated for cuda only"
    return Estimated(
        device=answer.device,
        card="" if answer.card is None else answer.card.name,
        peak_allocated=answer.peak_allocated,
        peak_reserved=answer.peak_reserved,
        setup_allocated=answer.steps[0].allocated,
        least_capacity=answer.needed.point,
        largest_batch=batch.number,
        beyond=batch.beyond,
        notes=tuple(caution.text for caution in answer.warnings),
        missing=missing,
        peaks=answer.allocated,
    )


NO_TIMES = "an estimate has no times"
NO_LOSSES = "an estimate has tensors without data: no losses"
_UNASKED = "no capacity was given"


def measured_outcome(
    option: Option, results: Sequence[Result], found: LargestBatch | Trouble | None
) -> Outcome:
    """Return what became of one option in all repeats; one that failed decides."""
    trouble = next((each for each in results if isinstance(each, Trouble)), None)
    if trouble is not None:
        return failed_outcome(option, trouble)
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
    batch, beyond = None, ""
    if found is None:
        missing["largest_batch"] = _UNASKED
    elif isinstance(found, Trouble):
        missing["largest_batch"] = found.text
    else:
        batch, beyond = found.batch, found.beyond
        if batch is None:
            missing["largest_batch"] = found.beyond
    return Outcome(
        option.name,
        option.settings,
        peak_allocated=max(peaks),
        peak_reserved=max(reserved, default=None),
        setup_allocated=first.setup_allocated,
        least_capacity=least,
        largest_batch=batch,
        beyond=beyond,
        held_ahead=max((each.held_ahead for each in runs if each.held_ahead), default=None),
        peaks=peaks,
        step_peaks=tuple(
            statistics.median_high(each.step_peaks) for each in runs if each.step_peaks
        ),
        seconds=tuple(statistics.median(each.seconds) for each in runs if each.seconds),
        losses=() if first.losses is None else finite(first.losses),
        notes=first.notes,
        missing=missing,
    )


def estimated_outcome(option: Option, result: Estimated | Trouble) -> Outcome:
    """Return what one option is estimated to need."""
    if isinstance(result, Trouble):
        return failed_outcome(option, result)
    missing = {"seconds": NO_TIMES, "losses": NO_LOSSES, **result.missing}
    if result.largest_batch is None:
        missing.setdefault("largest_batch", _UNASKED)
    return Outcome(
        option.name,
        option.settings,
        peak_allocated=result.peak_allocated,
        peak_reserved=result.peak_reserved,
        setup_allocated=result.setup_allocated,
        least_capacity=result.least_capacity,
        largest_batch=result.largest_batch,
        beyond=result.beyond,
        peaks=(result.peak_allocated,),
        notes=result.notes,
        missing=missing,
    )


def failed_outcome(option: Option, trouble: Trouble) -> Outcome:
    """Return the row of an option without figures."""
    return Outcome(
        option.name,
        option.settings,
        status=Status.FAILED if trouble.kind is Reason.USAGE else Status(trouble.kind),
        why=" ".join(trouble.text.split()),
        details=trouble.details,
    )
