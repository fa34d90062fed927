"""Suggestions verified by running the program with each change."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from tensorlens.planning.compare.options import OptionLike
from tensorlens.planning.compare.result import Comparison, Outcome, Status
from tensorlens.planning.estimate.target import STEPS
from tensorlens.planning.suggest.result import Suggestion, Suggestions
from tensorlens.planning.suggest.simulation import AS_IT_IS, Run, failure_text
from tensorlens.planning.trials.jobs import NO_STEP
from tensorlens.units import format_bytes

_MAX_SAME = 1.01
"""Largest ratio of repeats' peaks that count as the same."""


def verified(
    found: Suggestions, run: Run, *, by_step: bool = False, is_whole: bool = False
) -> Suggestions:
    """Return suggestions with the savings measured by running the step with each.

    With ``by_step`` the peak of the median step counts instead of the highest. A program that
    ``is_whole`` takes no setting.
    """
    options = {AS_IT_IS: {}, **({} if is_whole else _options(found))}
    if len(options) == 1:
        return replace(found, verified=True, suggestions=tuple(map(_unmeasured, found)))
    comparison = run(options, baseline=AS_IT_IS, device=found.device)
    found = _without_failed(found, comparison)
    if by_step:
        outcomes = (
            replace(each, peaks=each.step_peaks or each.peaks) for each in comparison.outcomes
        )
        comparison = replace(comparison, outcomes=tuple(outcomes))
    return replace(
        found,
        verified=True,
        measured_peak=_peak(comparison[AS_IT_IS]),
        notes=(*found.notes, *_noise(comparison, "median steps" if by_step else "peaks")),
        suggestions=tuple(
            _measured(each, comparison) if each.change in options else _unmeasured(each)
            for each in found
        ),
    )


def without_failures(found: Suggestions, run: Run, steps: int) -> Suggestions:
    """Return suggestions without those that make the program fail in its first steps."""
    options = _options(found)
    if not options:
        return found
    comparison = run(options, device=found.device, repeats=1, warmup=0, steps=min(steps, STEPS))
    return _without_failed(found, comparison)


def _options(found: Suggestions) -> dict[str, OptionLike]:
    return {each.change: option for each in found if (option := each.option) is not None}


def _without_failed(found: Suggestions, comparison: Comparison) -> Suggestions:
    """Leave out changes that make the program fail, unless it also fails without them."""
    failed = {each.name: each.why for each in comparison.outcomes if each.status == Status.FAILED}
    if AS_IT_IS in failed:
        return found
    return replace(
        found,
        suggestions=tuple(each for each in found if each.change not in failed),
        notes=(
            *found.notes,
            *(f"{name} is left out: {failure_text(failed[name])}" for name in failed),
        ),
    )


def _unmeasured(suggestion: Suggestion) -> Suggestion:
    why = NO_STEP if suggestion.settings else "compare() has no setting that does it"
    if suggestion.kind == "kept":
        why = "whether your code still needs it, no option can know"
    return replace(suggestion, missing=why)


def _measured(suggestion: Suggestion, comparison: Comparison) -> Suggestion:
    outcome, before = comparison[suggestion.change], comparison[comparison.baseline]
    if not outcome.ran:
        return replace(suggestion, missing=f"{outcome.status}: {outcome.why}")
    ratio = comparison.time_ratio(suggestion.change)
    peak, level = _level(suggestion, outcome), _level(suggestion, before)
    reasons = (each.missing.get("held_ahead", "") or each.why for each in (outcome, before))
    why = next(filter(None, reasons), "no loader was left after the last step")
    return replace(
        suggestion,
        measured_peak=peak,
        measured_saving=None if peak is None or level is None else level - peak,
        measured_time=ratio.point if ratio is not None and ratio.is_known else None,
        measured_noise=None if ratio is None else ratio.half_width,
        missing="" if peak is not None and level is not None else why,
    )


def _level(suggestion: Suggestion, outcome: Outcome) -> int | None:
    return outcome.held_ahead if suggestion.memory else _peak(outcome)


def _peak(outcome: Outcome) -> int | None:
    """Return the median peak of the repeats.

    If the peak depends on the order of operations, the highest of a few repeats is an outlier.
    """
    return statistics.median_high(outcome.peaks) if outcome.peaks else outcome.peak_allocated


def _noise(comparison: Comparison, what: str) -> Iterator[str]:
    """Yield a note with the peaks of repeats that differ."""
    ranges = [
        f"{each.name} {format_bytes(min(each.peaks))} to {format_bytes(max(each.peaks))}"
        for each in comparison.outcomes
        if each.peaks and max(each.peaks) > _MAX_SAME * min(each.peaks)
    ]
    if ranges:
        yield (
            f"measured in {comparison.repeats} runs, the median of their {what} counts: "
            + ", ".join(ranges)
        )
