"""The record, put together from what trials and estimates came to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tensorlens.frameworks.trials.jobs import Measured, Reason, Result, Trouble
from tensorlens.planning.compare.batches import Found
from tensorlens.planning.compare.estimates import Estimated
from tensorlens.planning.compare.options import Option
from tensorlens.planning.compare.result import Outcome, finite

NO_TIMES = "an estimate has no times"
NO_LOSSES = "an estimate has tensors without data: no losses"
_UNASKED = "no capacity was given"


def measured_outcome(
    option: Option, results: Sequence[Result], found: Found | Trouble | None
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
        status=Reason.FAILED if trouble.kind is Reason.USAGE else trouble.kind,
        why=" ".join(trouble.text.split()),
        details=trouble.details,
    )
