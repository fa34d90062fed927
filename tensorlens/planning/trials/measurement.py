"""Runs a job with data and measures it, optionally under a memory limit."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.frameworks.host.process_memory import heap_now, status_sizes
from tensorlens.planning.trials.global_settings import apply
from tensorlens.planning.trials.jobs import CannotApply, Failure, FailureKind, Job, Result
from tensorlens.planning.trials.loaders_ahead import held_ahead
from tensorlens.planning.trials.meter import ExtraStepRecorder, Meter
from tensorlens.planning.trials.program_recording import ProgramRecording
from tensorlens.planning.trials.stage import ProgramWithOptions
from tensorlens.planning.trials.step_runner import StepRunner, loss_of

_NO_LOSS = "step() returns no loss: a number, a tensor of one element, or a dict or object with one"


@dataclass(frozen=True, slots=True)
class TrialHooks:
    """A framework's part of a measured run."""

    seed: Callable[[], object]
    """Seeds the framework's generators with 0."""
    meter: Callable[[str | None], Meter]
    """Returns a meter that measures from now on; its argument is the device of the figures."""
    program: Callable[[Job], ProgramWithOptions]
    """Returns the program with its options."""
    when_stepped: Callable[[Callable[[], None]], Callable[[], None]]
    """Calls a function after each step of the first optimizer; returns a function that ends it."""
    refusal: Callable[[BaseException, bool], str | None]
    """Returns the text of the failed request of an out-of-memory error, or None; its second
    argument is whether the job has a limit."""
    limit_memory: Callable[[int], AbstractContextManager[None]]
    """Limits the program's memory to a number of bytes from now on."""
    needs_rehearsal: Callable[[], bool]
    """Returns whether a small step must load libraries before a limit is set."""
    clear: Callable[[], object] = lambda: None
    """Frees what the rehearsal left."""


def run_job(job: Job, hooks: TrialHooks) -> Result:
    """Run a job and return its result."""
    _seed(hooks)
    settings = job.program.global_settings or {}
    apply(settings)
    if job.limit is not None and hooks.needs_rehearsal():
        _rehearse(job, hooks)
        apply(settings)
    meter = hooks.meter(job.device)
    losses: list[float | None] = []
    program = hooks.program(job)
    kept: list[Any] = []
    """The step, whose loaders must stay until they are read."""

    def call(step: Callable[[], Any]) -> None:
        losses.append(loss_of(step() if recording is None else recording.call(step)))
        meter.wait()

    def begin() -> Any:
        kept.append(program.begin() if recording is None else recording.begin(program.begin))
        return kept[0]

    wanted = job.warmup + job.steps
    recording = ProgramRecording(meter, job) if job.records else None
    extra_step = ExtraStepRecorder(meter, wanted) if job.explains and job.limit is None else None
    if extra_step is not None:
        steps = StepRunner(wanted + 1, extra_step, extra_step.done, hooks.when_stepped)
    else:
        # a message for each step would take processor time from the next one
        steps = StepRunner(wanted, recording or meter, lambda done: None, hooks.when_stepped)
    try:
        with nullcontext() if job.limit is None else hooks.limit_memory(job.limit):
            steps.run(begin, call)
    except BaseException as error:
        # data may be too short for the extra step: the figures are known by then
        is_of_extra_step = extra_step is not None and extra_step.figures is not None
        if not (is_of_extra_step and isinstance(error, Exception)):
            text = hooks.refusal(error, job.limit is not None)
            if text is None:
                raise
            return Failure(FailureKind.OUT_OF_MEMORY, text)
    program.finished()
    figures = extra_step.figures if extra_step and extra_step.figures else meter.figures()
    ahead, why = held_ahead()
    missing = {**figures.missing, **({"held_ahead": why} if why else {})}
    known = [loss for loss in losses[:wanted] if loss is not None]
    if not known or len(known) < len(losses[:wanted]):
        missing["losses"] = _NO_LOSS
    return replace(
        figures,
        seconds=tuple(steps.seconds[job.warmup : wanted]),
        losses=None if "losses" in missing else tuple(known),
        held_ahead=ahead,
        step_peaks=figures.step_peaks[job.warmup :],
        notes=tuple(program.stage.notes),
        at_peak=extra_step.at_peak() if extra_step else {},
        missing=missing,
        recorded=None if recording is None else recording.result,
    )


def _rehearse(job: Job, hooks: TrialHooks) -> None:
    """Run one small step and free it, so that libraries are loaded and threads started."""
    # a program may refuse so small a batch; any other error comes again in the run
    with contextlib.suppress(Exception):
        step = hooks.program(replace(job, batch=job.rehearsal)).begin()
        if step is not None:
            step()
        del step
    hooks.clear()
    gc.collect()


def _seed(hooks: TrialHooks) -> None:
    """Seed all generators, so that every option begins with the same random numbers."""
    random.seed(0)
    hooks.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)


@contextlib.contextmanager
def host_limited(nbytes: int) -> Iterator[None]:
    """Limit the process to ``nbytes`` beyond what it uses now.

    It sets ``RLIMIT_DATA``, which counts private mappings on Linux 4.7 and later. Free memory of
    the C library is returned first, or counts as part of these bytes.

    Raises:
        CannotApply: this system sets no such limit.
    """
    try:
        import resource

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        mapped = status_sizes().get("VmData")
    except ImportError:
        mapped = None
    if mapped is None:
        raise CannotApply("this system cannot limit a process's memory: it needs Linux's /proc")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    heap = heap_now()
    wanted = mapped + nbytes - (0 if heap is None else heap[1])
    hard = before[1]
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
