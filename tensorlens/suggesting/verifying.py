"""What suggested changes really save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tensorlens.comparing import compare
from tensorlens.comparing.options import Given
from tensorlens.estimating.programs import MakeStep
from tensorlens.records.comparisons import Comparison
from tensorlens.records.suggestions import Suggestion, Suggestions

_BASE = "as it is"
_OWN_CODE = "only your code can change it: change it, then compare"


def verified(told: Suggestions, step: MakeStep, **asked: Any) -> Suggestions:
    """Return suggestions with what they save when the step runs with them.

    Args:
        told: the suggestions.
        step: the program.
        asked: further arguments of :func:`tensorlens.compare`.
    """
    options: dict[str, Given] = {_BASE: {}}
    options.update((each.change, option) for each in told if (option := _option(each)) is not None)
    if len(options) == 1:
        return replace(
            told,
            verified=True,
            suggestions=tuple(replace(each, missing=_OWN_CODE) for each in told),
        )
    found = compare(step, options, baseline=_BASE, device=told.device, **asked)
    return replace(
        told,
        verified=True,
        measured_peak=found[_BASE].peak_allocated,
        suggestions=tuple(
            _measured(each, found) if each.change in options else replace(each, missing=_OWN_CODE)
            for each in told
        ),
    )


def _option(suggestion: Suggestion) -> Given:
    if suggestion.kind == "zero_grad":
        return _gradients_first
    return suggestion.option


def _gradients_first(make_step: Callable[[], Any]) -> Any:
    # imported where the program runs: here torch need not be
    from tensorlens.frameworks.torch.gradients_first import gradients_first

    return gradients_first(make_step)


def _measured(suggestion: Suggestion, found: Comparison) -> Suggestion:
    outcome = found[suggestion.change]
    if not outcome.ran:
        return replace(suggestion, missing=f"{outcome.status}: {outcome.why}")
    ratio = found.time_ratio(suggestion.change)
    return replace(
        suggestion,
        measured_peak=outcome.peak_allocated,
        measured_saving=found.saved(suggestion.change),
        measured_time=None if ratio is None else ratio.point,
    )
