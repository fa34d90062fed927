"""Changes tried by the program itself: simulated without data, and verified by runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tensorlens.planning.compare.options import OptionLike
from tensorlens.planning.compare.result import Comparison, Outcome, Status
from tensorlens.planning.suggest.recomputation import recompute_suggestion
from tensorlens.planning.suggest.recorded_steps import TENSORFLOW, RecordedSteps
from tensorlens.planning.suggest.result import Method, Suggestion, Suggestions
from tensorlens.planning.suggest.state import has_momentum, plain_sgd, slot_bytes
from tensorlens.planning.trials.jobs import NO_STEP
from tensorlens.units import format_bytes

Run = Callable[..., Comparison]
""":func:`tensorlens.compare` of the program: it is called with options, and more."""

AS_IT_IS = "as it is"
_HALVES = 0.01
"""Of the peak: halves of activations that are less are not looked into."""
_COST = "8 bits of precision in place of 24: the loss differs a little"
_NO_KERAS = (
    "the steps have no optimizer of Keras, nor blocks of its layers: of others only what is kept"
    " too long is looked at; compare() has options for sessions"
)
_NOT_COMPILED = (
    "could not be simulated: that takes the train step of a compiled Keras model, and this is a"
    " loop of one's own; compare() measures its options"
)
_GRAPH = (
    "the step runs as a graph, and what of its operations comes first is decided as it runs:"
    " simulated is one likely order"
)


def failure_text(why: str) -> str:
    """Return why a change fails, with what is known of errors of that kind."""
    if "CheckpointError" not in why:
        return why
    return (
        f"{why}; a block does not compute the same twice: look for a cache (use_cache=True), random"
        " numbers of its own, or what depends on how often it was called"
    )


def simulated(
    record: RecordedSteps, replayed: Sequence[Suggestion], run: Run
) -> tuple[Sequence[Suggestion], Sequence[str]]:
    """Return changes, in the place of those replayed where the program can be simulated.

    What it fails with there is none of them. The notes say what could not be simulated.
    """
    facts, notes = record.facts, list[str]()
    if facts.is_whole:
        return replayed, notes
    wanted = [*_wanted(record, replayed)]
    names = " and ".join(each.change for each in wanted)
    if record.framework == TENSORFLOW and not facts.optimizers and not facts.blocks:
        notes.append(_NO_KERAS)
    elif record.framework == TENSORFLOW and not facts.is_compiled and wanted:
        return replayed, [f"{names} {_NOT_COMPILED}"]
    if not wanted:
        return replayed, notes
    options = {AS_IT_IS: {}, **{each.change: each.option for each in wanted}}
    found = run(options, how="estimated", device=record.device, baseline=AS_IT_IS)
    before = found[AS_IT_IS]
    if before.peak_allocated is None:
        return replayed, [f"{names} could not be simulated: {before.why}"]
    kinds = {each.kind for each in wanted}
    changes = [each for each in replayed if each.kind not in kinds]
    for each in wanted:
        outcome, saving = found[each.change], found.saved(each.change)
        if saving is None:
            notes.append(f"{each.change} could not be simulated: {failure_text(outcome.why)}")
            continue
        changes.append(
            replace(
                each,
                predicted_peak=record.peak - saving,
                predicted_saving=saving,
                how=Method.SIMULATED,
            )
        )
    return changes, [*notes, _GRAPH] if facts.is_graph else notes


def _wanted(record: RecordedSteps, replayed: Sequence[Suggestion]) -> Iterator[Suggestion]:
    """Give the changes to simulate, without their peaks."""
    facts = record.facts
    checkpoints = [each for each in replayed if each.kind == "checkpoint"]
    if record.framework == TENSORFLOW:
        if _computes_in_float32(record):
            yield _POLICY
        if facts.blocks and not facts.recomputes and not checkpoints:
            yield recompute_suggestion(record, facts.blocks)
        # the recording of a graph is of one order of the operations: without slots it is another
        if facts.is_graph and slot_bytes(record) and not has_momentum(record):
            yield plain_sgd(record, 0)
        return
    # what else a block's second forward does, as with a cache, no recording tells
    yield from (each for each in checkpoints if each.predicted_saving > 0)
    if _computes_in_float32(record):
        yield _autocast(record.device.partition(":")[0])
    if facts.sets_to_none is False:
        yield _SET_TO_NONE


_SET_TO_NONE = Suggestion(
    kind="set_to_none",
    change="set gradients to None",
    what="gradients that stay while forward runs",
    code="optimizer.zero_grad(set_to_none=True)",
    cost="none; a parameter that backward does not reach then has no gradient instead of 0",
    settings=("set_to_none=True",),
)
_POLICY = Suggestion(
    kind="bf16",
    change="mixed_bfloat16",
    what="what layers compute, in half the bytes; weights stay in single precision",
    code='# before the model is made\nkeras.config.set_dtype_policy("mixed_bfloat16")',
    cost=_COST,
    settings=("policy=mixed_bfloat16",),
)


def _autocast(device: str) -> Suggestion:
    return Suggestion(
        kind="bf16",
        change="autocast in bf16",
        what="activations and weights in forward, in half the bytes",
        code=(
            "# around the calls of the model and of the loss, not of backward()\n"
            f'with torch.autocast("{device}", dtype=torch.bfloat16):\n'
            "    ..."
        ),
        cost=_COST,
        settings=("autocast=bf16",),
    )


def _computes_in_float32(record: RecordedSteps) -> bool:
    """Tell whether halves of the activations at the peak are a part of it that counts."""
    if record.facts.has_low_precision:
        return False
    activations = sum(
        record.log.size[row]
        for row in record.allocations()
        if row <= record.peak_row < record.end(row) and record.role(row) == "activation"
    )
    return activations / 2 >= _HALVES * record.peak


_NOTABLE = 1.01
"""How far apart the peaks of repeats must be to be told, as a ratio."""
_STEPS = 2
"""Optimizers make their state in the first; the second has it."""


def verified(
    told: Suggestions, run: Run, *, by_step: bool = False, is_whole: bool = False
) -> Suggestions:
    """Return suggestions with what they save when the step runs with them.

    With ``by_step`` the peak of the median step counts, not that of the highest. A program that
    ``is_whole`` takes no setting.
    """
    options = {AS_IT_IS: {}, **({} if is_whole else _options(told))}
    if len(options) == 1:
        return replace(told, verified=True, suggestions=tuple(map(_unmeasured, told)))
    found = run(options, baseline=AS_IT_IS, device=told.device)
    told = _without(told, found)
    if by_step:
        outcomes = (replace(each, peaks=each.step_peaks or each.peaks) for each in found.outcomes)
        found = replace(found, outcomes=tuple(outcomes))
    return replace(
        told,
        verified=True,
        measured_peak=_peak(found[AS_IT_IS]),
        notes=(*told.notes, *_noise(found, "median steps" if by_step else "peaks")),
        suggestions=tuple(
            _measured(each, found) if each.change in options else _unmeasured(each) for each in told
        ),
    )


def without_failures(told: Suggestions, run: Run, steps: int) -> Suggestions:
    """Return suggestions without those with which the program fails in its first steps."""
    options = _options(told)
    if not options:
        return told
    found = run(options, device=told.device, repeats=1, warmup=0, steps=min(steps, _STEPS))
    return _without(told, found)


def _options(told: Suggestions) -> dict[str, OptionLike]:
    return {each.change: option for each in told if (option := each.option) is not None}


def _without(told: Suggestions, found: Comparison) -> Suggestions:
    """Leave out what the program fails with, unless it fails without any change too."""
    failed = {each.name: each.why for each in found.outcomes if each.status == Status.FAILED}
    if AS_IT_IS in failed:
        return told
    return replace(
        told,
        suggestions=tuple(each for each in told if each.change not in failed),
        notes=(
            *told.notes,
            *(f"{name} is left out: {failure_text(failed[name])}" for name in failed),
        ),
    )


def _unmeasured(suggestion: Suggestion) -> Suggestion:
    why = NO_STEP if suggestion.settings else "compare() has no setting that does it"
    if suggestion.kind == "kept":
        why = "whether your code still needs it, no option can know"
    return replace(suggestion, missing=why)


def _measured(suggestion: Suggestion, found: Comparison) -> Suggestion:
    outcome, before = found[suggestion.change], found[found.baseline]
    if not outcome.ran:
        return replace(suggestion, missing=f"{outcome.status}: {outcome.why}")
    ratio = found.time_ratio(suggestion.change)
    ratio = ratio if ratio is not None and ratio.is_known else None
    peak, level = _level(suggestion, outcome), _level(suggestion, before)
    reasons = (each.missing.get("held_ahead", "") or each.why for each in (outcome, before))
    why = next(filter(None, reasons), "no loader was left after the last step")
    return replace(
        suggestion,
        measured_peak=peak,
        measured_saving=None if peak is None or level is None else level - peak,
        measured_time=None if ratio is None else ratio.point,
        measured_noise=None if ratio is None else ratio.half_width,
        missing="" if peak is not None and level is not None else why,
    )


def _level(suggestion: Suggestion, outcome: Outcome) -> int | None:
    return outcome.held_ahead if suggestion.memory else _peak(outcome)


def _peak(outcome: Outcome) -> int | None:
    """Return the peak, of repeats the median.

    Where the peak depends on what runs first, the highest of a few is that of an unlucky one.
    """
    return statistics.median_high(outcome.peaks) if outcome.peaks else outcome.peak_allocated


def _noise(found: Comparison, what: str) -> Iterator[str]:
    """Say how far apart the peaks of repeats are, where that is far."""
    ranges = [
        f"{each.name} {format_bytes(min(each.peaks))} to {format_bytes(max(each.peaks))}"
        for each in found.outcomes
        if each.peaks and max(each.peaks) > _NOTABLE * min(each.peaks)
    ]
    if ranges:
        yield (
            f"measured in {found.repeats} runs, the median of their {what} counts: "
            + ", ".join(ranges)
        )
