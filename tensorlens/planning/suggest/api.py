"""``suggest()``: the changes that would save most, and on request their measured savings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.planning.card import device_spec
from tensorlens.planning.compare.api import compare, step_job
from tensorlens.planning.estimate.api import checked_arguments
from tensorlens.planning.estimate.target import MakeStep, framework_of, program
from tensorlens.planning.processes import ProgramFailed, Runner, shared_runner
from tensorlens.planning.suggest.checkpoints import block_checkpoints
from tensorlens.planning.suggest.late_frees import (
    backward_leftovers,
    step_leftovers,
    zero_grad_change,
)
from tensorlens.planning.suggest.optimizers import optimizer_change
from tensorlens.planning.suggest.queues import queue_change
from tensorlens.planning.suggest.recomputation import block_recomputation
from tensorlens.planning.suggest.recorded_steps import TENSORFLOW, TORCH, Finder, RecordedSteps
from tensorlens.planning.suggest.result import Suggestion, Suggestions
from tensorlens.planning.suggest.simulation import Run, simulated
from tensorlens.planning.suggest.verification import verified, without_failures
from tensorlens.planning.trace import Framework
from tensorlens.planning.trials.jobs import (
    Failure,
    FailureKind,
    Job,
    Measurement,
    Variant,
    catalogue,
)
from tensorlens.recording.analysis.levels import dropped_peak
from tensorlens.recording.present.moment_layout import line_rows
from tensorlens.recording.present.remarks import largest_line, largest_tensors
from tensorlens.recording.recordings import Recording
from tensorlens.units import format_bytes

_ON_HOST = (
    "suggest() knows only the CPU memory of TensorFlow's steps: TensorFlow does not report"
    " single blocks on an accelerator; compare() measures its options there"
)
_DROPPED = "the highest instant is among the events that were dropped: record a shorter span"
_MIN_SAVING_FRACTION = 0.01
"""Savings below this fraction are not suggested: of the peak, or for memory that is not part of it,
of the most that the host holds."""
_GRAPH_REPEATS = 3
_GRAPH_STEPS = 10
"""Measured steps of a graph, unless they would take longer than :data:`_MAX_SECONDS`."""
_SHORT_STEPS = 30
"""Warm-up steps, and measured steps, of a graph whose steps take less than :data:`_SHORT_SECONDS`.
Threads disturb each other at first, which raises the peaks of about a dozen steps of 3 ms."""
_SHORT_SECONDS, _MAX_SECONDS = 0.2, 60.0

_FINDERS: dict[Framework, tuple[Finder, ...]] = {
    TORCH: (
        block_checkpoints,
        optimizer_change,
        zero_grad_change,
        step_leftovers,
        backward_leftovers,
        queue_change,
    ),
    TENSORFLOW: (block_recomputation, optimizer_change, step_leftovers),
}


def suggest(
    step: MakeStep | Recording,
    *,
    verify: bool = False,
    top: int = 3,
    device: str | None = None,
    batch: int | None = None,
    warmup: int = 1,
    steps: int = 2,
    repeats: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    framework: str | None = None,
) -> Suggestions:
    """Return the changes that would save most at the peak, each with its predicted saving.

    The program is recorded once, in a process of its own, from its first line through ``warmup +
    steps`` steps. Each change is replayed on that recording; the new peak may be at another moment.
    Unless it is a whole program, some changes are simulated, and all that compare() can make are
    tried for these steps: those that fail are left out. So are those that save less than 1 % of
    the peak.

    Args:
        step: ``make_step``, a function that builds model, optimizer and data and returns
            ``step()``; or ``"module:function"`` or ``"file.py:function"``. Or a recording of one
            or more steps.
        verify: also run the step with each change, by :func:`tensorlens.compare`, for the measured
            saving.
        top: number of changes with a cost to return; free ones are always returned.
        device: device whose memory counts: ``cpu``, ``cuda:0``. By default the CUDA device that is
            used most, or the CPU if none is used; of a recording, the one with the highest peak.
        batch: argument of ``make_step``; None: no argument.
        warmup: first steps of the recording; with ``verify`` also those before the timed ones.
        steps: steps after ``warmup``. A verified TensorFlow graph is run for more; the median of
            its steps' peaks counts (``docs/suggest.md``).
        repeats: runs of each change if changes are verified; the median of their peaks counts. By
            default 1, and 3 for such a graph.
        arguments: keyword arguments of ``make_step``.
        timeout: seconds after which a process is ended.
        framework: framework of the steps: ``torch`` or ``tensorflow``, which has Keras's; by
            default the one that the program imports, and torch if a recording has both.

    Raises:
        UsageError: an argument makes no sense; one line says why.
        ProgramFailed: the program raised an error, or its process crashed.
    """
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise UsageError(f"top={top}: how many changes are wanted, at least 1")
    if framework is not None and framework not in _FINDERS:
        raise UsageError(f"framework={framework!r}: there is {', '.join(_FINDERS)}")
    if isinstance(step, Recording):
        if verify:
            raise UsageError(
                "to verify, the program is run: give make_step in place of a recording"
            )
        recorded = RecordedSteps(step.still(), device=device, framework=framework)
        return _suggestions(recorded, _candidates(recorded), top, "")
    if not isinstance(warmup, int) or not isinstance(steps, int) or warmup < 0 or steps < 1:
        raise UsageError(f"warmup={warmup}, steps={steps}: at least one step is recorded")
    framework = framework or framework_of(step, program(step))
    if framework == TENSORFLOW and device not in (None, "cpu"):
        raise UsageError(_ON_HOST)
    # refuses a release that is too old
    catalogue(framework)
    job = step_job(
        step,
        device=device,
        batch=batch,
        warmup=warmup,
        steps=steps,
        timeout=timeout,
        framework=framework,
    )
    # refuses an unknown device
    device_spec("cuda" if device is None else device, None, None)
    job = replace(job, variant=Variant(arguments=checked_arguments(arguments)), records=True)
    run: Run = partial(
        compare,
        step,
        batch=batch,
        arguments=arguments,
        timeout=timeout,
        framework=framework,
        explain=False,
    )
    with shared_runner() as processes:
        measured = _record_program(processes, job)
        recorded = _recorded_steps(measured, job.framework)
        candidates, notes = simulated(recorded, [*_candidates(recorded)], run)
        suggestions = _suggestions(recorded, candidates, top, job.program.name, notes)
        facts = recorded.facts
        if not suggestions.suggestions:
            return replace(suggestions, verified=verify)
        if not verify:
            if facts.is_whole:
                return suggestions
            return without_failures(suggestions, run, warmup + steps)
        if facts.is_graph:
            warmup, steps = _graph_steps(measured.seconds, warmup, steps)
        if repeats is None:
            repeats = _GRAPH_REPEATS if facts.is_graph else 1
        run = partial(run, warmup=warmup, steps=steps, repeats=repeats)
        return verified(suggestions, run, by_step=facts.is_graph, is_whole=facts.is_whole)


def _record_program(processes: Runner, job: Job) -> Measurement:
    """Run the program and record it.

    Raises:
        ProgramFailed: it raised an error, or its process crashed.
    """
    result = processes.run(job)
    if isinstance(result, Measurement):
        return result
    assert isinstance(result, Failure)
    text = " ".join(result.text.split())
    raise ProgramFailed(replace(result, kind=FailureKind.FAILED, text=text))


def _recorded_steps(measured: Measurement, framework: Framework) -> RecordedSteps:
    if framework == TENSORFLOW and measured.device != "cpu":
        raise UsageError(_ON_HOST)
    assert measured.recorded is not None
    recording, facts = measured.recorded
    return RecordedSteps(recording, facts, measured.device, framework)


def _graph_steps(step_seconds: Sequence[float], warmup: int, steps: int) -> tuple[int, int]:
    """Return the numbers of warm-up and measured steps of a graph, by the time of a step."""
    seconds = statistics.median(step_seconds) if step_seconds else math.inf
    if seconds * _GRAPH_STEPS > _MAX_SECONDS:
        return warmup, steps
    if seconds < _SHORT_SECONDS:
        return max(warmup, _SHORT_STEPS), max(steps, _SHORT_STEPS)
    return warmup, max(steps, _GRAPH_STEPS)


def _candidates(recorded: RecordedSteps) -> Iterator[Suggestion]:
    for find in _FINDERS[recorded.framework]:
        yield from find(recorded)


def _suggestions(
    recorded: RecordedSteps,
    candidates: Iterable[Suggestion],
    top: int,
    program: str,
    notes: Sequence[str] = (),
) -> Suggestions:
    notable = [each for each in candidates if each.predicted_saving >= _min_saving(recorded, each)]
    notable.sort(key=lambda each: -each.predicted_saving)
    with_cost = [each for each in notable if not each.is_free]
    others = with_cost[top:]
    peak = recorded.recording.at(recorded.peak_row, recorded.device)
    dropped = dropped_peak(recorded.recording, recorded.device) > recorded.peak
    lines, _ = line_rows(recorded.log, peak.by_line, None)
    return Suggestions(
        suggestions=tuple(each for each in notable if each not in others),
        device=recorded.device,
        peak=recorded.peak,
        moment=recorded.moment(recorded.peak_row),
        line=largest_line(lines, recorded.peak),
        source=next((each.source for each in lines if each.line is not None), ""),
        tensor=largest_tensors(
            recorded.recording, recorded.device, recorded.peak_row, recorded.peak
        ),
        program=program,
        others=tuple(_summary(recorded, each) for each in others),
        notes=(*([_DROPPED] if dropped else []), *notes),
    )


def _min_saving(recorded: RecordedSteps, each: Suggestion) -> float:
    """Return the smallest saving in bytes that is suggested."""
    if each.before is None:
        return max(1.0, _MIN_SAVING_FRACTION * recorded.peak)
    return _MIN_SAVING_FRACTION * (recorded.host_peak + each.before)


def _summary(recorded: RecordedSteps, each: Suggestion) -> str:
    saving = each.predicted_saving
    if each.memory:
        return f"{each.change} ({format_bytes(saving)} of {each.memory})"
    return f"{each.change} ({100 * saving / recorded.peak:.1f} %)"
