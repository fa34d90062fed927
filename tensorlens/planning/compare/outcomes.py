"""The row of an option, from the results of its trials."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tensorlens.planning.compare.options import Option
from tensorlens.planning.compare.result import Outcome, Status
from tensorlens.planning.compare.trials import EstimatedOption, LargestBatch
from tensorlens.planning.trials.jobs import Measured, Reason, Result, Trouble


def outcome_of(
    option: Option, results: Sequence[Result | EstimatedOption], largest: LargestBatch | Trouble
) -> Outcome:
    """Return the row of an option from the results of all repeats; if one failed, that is told."""
    trouble = next((each for each in results if isinstance(each, Trouble)), None)
    if trouble is not None:
        return Outcome(
            option.name,
            option.settings,
            status=Status.FAILED if trouble.kind is Reason.USAGE else Status(trouble.kind),
            why=" ".join(trouble.text.split()),
            details=trouble.details,
        )
    if isinstance(results[0], EstimatedOption):
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
    if isinstance(largest, Trouble):
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
