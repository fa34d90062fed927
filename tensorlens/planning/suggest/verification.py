"""The program recorded for suggestions, and run again with each to see what it really saves."""

from __future__ import annotations

import pickle
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorlens.planning.compare.options import Given
from tensorlens.planning.compare.result import Comparison, Outcome, Status
from tensorlens.planning.step_facts import StepFacts, Watch, watch
from tensorlens.planning.suggest.late_frees import Act
from tensorlens.planning.suggest.result import Suggestion, Suggestions
from tensorlens.planning.suggest.simulated_changes import AS_IT_IS, Run, failure_text
from tensorlens.recording.record import LiveRecording, record
from tensorlens.recording.recordings import Recording
from tensorlens.units import format_bytes

_SEEN = "seen.pickle"


class Watcher:
    """An option of :func:`tensorlens.compare` that changes nothing and records all."""

    __name__ = "watched"

    def __init__(self, folder: str, steps: int, framework: str) -> None:
        self._folder = folder
        self._steps = steps
        self._framework = framework

    def __call__(self, make_step: Callable[[], Any]) -> Any:
        """Make the step and return it, watched."""
        recording = record()
        recording.start()
        seen = watch(self._framework, recording.mark)
        try:
            with seen.on():
                step = make_step()
        except BaseException:
            # a whole program, which is ended after its last step
            self._leave(recording, _facts(seen, is_whole=True))
            raise
        if not callable(step):
            self._leave(recording, _facts(seen, is_whole=True))
            return step
        done = 0

        def watched() -> Any:
            nonlocal done
            done += 1
            if done > self._steps:
                return step()
            recording.mark(f"step {done}")
            seen.is_last = done == self._steps
            with seen.on():
                result = step()
            if seen.is_last:
                recording.mark("end")
                self._leave(recording, _facts(seen, is_whole=False))
            return result

        return watched

    def _leave(self, recording: LiveRecording, facts: StepFacts) -> None:
        recording.stop()
        seen = Recording(recording.log, recording.origin), facts
        place = Path(self._folder) / _SEEN
        part = place.with_suffix(".part")
        part.write_bytes(pickle.dumps(seen, protocol=5))
        part.replace(place)


def _facts(seen: Watch, is_whole: bool) -> StepFacts:
    """Return what is known; what cannot be found out of a strange program is left out."""
    try:
        return seen.facts(is_whole)
    except Exception:
        return StepFacts(is_whole=is_whole)


def watched(folder: str) -> tuple[Recording, StepFacts] | None:
    """Return what a :class:`Watcher` left in a folder; None where it left nothing."""
    place = Path(folder) / _SEEN
    if not place.exists():
        return None
    seen: tuple[Recording, StepFacts] = pickle.loads(place.read_bytes())
    return seen


_NOTABLE = 1.01
"""How far apart the peaks of repeats must be to be told, as a ratio."""
_OWN_CODE = "whether your code still needs it, no option can know"
_STEPS = 2
"""Optimizers make their state in the first; the second has it."""
_NO_OPTION = "compare() has no setting that does it"


def verified(
    told: Suggestions, run: Run, acts: Mapping[str, Act], *, by_step: bool = False
) -> Suggestions:
    """Return suggestions with what they save when the step runs with them.

    ``acts`` does a change, by its text, where :func:`tensorlens.compare` has no setting. With
    ``by_step`` the peak of the median step counts, not that of the highest.
    """
    options = {AS_IT_IS: {}, **_options(told, acts)}
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


def without_failures(
    told: Suggestions, run: Run, acts: Mapping[str, Act], steps: int
) -> Suggestions:
    """Return suggestions without those with which the program fails in its first steps."""
    options = _options(told, acts)
    if not options:
        return told
    found = run(options, device=told.device, repeats=1, warmup=0, steps=min(steps, _STEPS))
    return _without(told, found)


def _options(told: Suggestions, acts: Mapping[str, Act]) -> dict[str, Given]:
    given = {each.change: each.option or acts.get(each.change) for each in told}
    return {change: option for change, option in given.items() if option is not None}


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
    return replace(suggestion, missing=_OWN_CODE if suggestion.kind == "kept" else _NO_OPTION)


def _measured(suggestion: Suggestion, found: Comparison) -> Suggestion:
    outcome, before = found[suggestion.change], found[found.baseline]
    if not outcome.ran:
        return replace(suggestion, missing=f"{outcome.status}: {outcome.why}")
    ratio = found.time_ratio(suggestion.change)
    ratio = ratio if ratio is not None and ratio.is_known else None
    peak, level = _level(suggestion, outcome), _level(suggestion, before)
    return replace(
        suggestion,
        measured_peak=peak,
        measured_saving=None if peak is None or level is None else level - peak,
        measured_time=None if ratio is None else ratio.point,
        measured_noise=None if ratio is None else ratio.half_width,
        missing="" if peak is not None and level is not None else _why(outcome, before),
    )


def _level(suggestion: Suggestion, outcome: Outcome) -> int | None:
    """Return the most that there was of the memory that the change is about."""
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


def _why(*outcomes: Outcome) -> str:
    reasons = [each.missing.get("held_ahead", "") or each.why for each in outcomes]
    return next(filter(None, reasons), "no loader was left after the last step")
