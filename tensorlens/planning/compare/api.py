"""``compare()``: memory and time of the same step under several options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import replace
from functools import partial
from typing import Any, cast

from tensorlens.errors import UsageError
from tensorlens.guards import reason
from tensorlens.planning.allocators.cuda import VARIABLES, parse_settings
from tensorlens.planning.card import DeviceSpec, device_spec
from tensorlens.planning.compare.options import Option, OptionLike, checked_options
from tensorlens.planning.compare.result import Comparison, Outcome
from tensorlens.planning.compare.trials import (
    NO_BATCH,
    NO_CAPACITY,
    EstimatedOption,
    LargestBatch,
    largest_measured_batch,
    outcome_of,
    run_estimate,
)
from tensorlens.planning.estimate.api import StepsRequest, allocator_settings, checked_arguments
from tensorlens.planning.estimate.target import STEPS, MakeStep, framework_of, program, search_path
from tensorlens.planning.processes import shared_runner
from tensorlens.planning.progress import Done, progress
from tensorlens.planning.trace import Framework
from tensorlens.planning.trials.jobs import NO_STEP, Failure, FailureKind, Job, Measurement, Variant
from tensorlens.records.run import current_run

Trial = tuple[str, Callable[[], Any]]
"""The name of an option, and a function that runs one trial of it, picklable for executors."""


def run_trial(job: Job) -> Any:
    """Run a job in another process and return its result."""
    with shared_runner() as processes:
        return processes.run(job)


def _results(trials: Sequence[Trial], executor: Executor | None) -> list[Any]:
    """Return the result of each trial; an option that failed is not repeated."""
    with progress("compare", "trial", len(trials)) as done:
        if executor is not None:
            return _results_of_executor(trials, executor, done)
        results: list[Any] = []
        failed: dict[str, Failure] = {}
        with shared_runner():
            for number, (name, run) in enumerate(trials):
                done(number, name)
                results.append(failed.get(name) or run())
                if isinstance(results[-1], Failure):
                    failed[name] = results[-1]
    return results


def _results_of_executor(trials: Sequence[Trial], executor: Executor, done: Done) -> list[Any]:
    """Return the results; an error of the executor itself becomes a :class:`Failure`."""
    if not hasattr(executor, "submit"):
        raise UsageError(
            f"executor is a {type(executor).__name__}: give a concurrent.futures.Executor"
        )
    results: list[Any] = [None] * len(trials)
    futures: dict[Future[Any], int] = {}
    try:
        for number, (_, run) in enumerate(trials):
            futures[executor.submit(run)] = number
        for count, future in enumerate(as_completed(futures), 1):
            number = futures[future]
            try:
                results[number] = future.result()
            except UsageError:
                raise
            except Exception as error:
                text = f"the executor failed: {reason(error)[:300]}"
                results[number] = Failure(FailureKind.FAILED, text)
            done(count, trials[number][0])
    finally:
        for future in futures:
            future.cancel()
    return results


def compare(
    make_step: MakeStep,
    options: Mapping[str, OptionLike],
    *,
    how: str = "measured",
    baseline: str | None = None,
    device: str | None = None,
    card: str | None = None,
    capacity: int | str | None = None,
    batch: int | None = None,
    lowest: int = 1,
    highest: int | None = None,
    warmup: int = 1,
    steps: int = 3,
    repeats: int = 3,
    arguments: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    executor: Executor | None = None,
    framework: str | None = None,
    explain: bool = True,
) -> Comparison:
    """Compare the memory and the time of a step under several options.

    Each repeat of an option runs in a process of its own, one at a time, and the options take
    turns. An option that cannot work here, or whose process fails or crashes, is a row with the
    reason.

    Args:
        make_step: function that builds model, optimizer and data and returns ``step()``, which
            runs one step and may return its loss. Or ``"module:function"``, ``"file.py:function"``.
        options: name to option: a dict of built-in settings (``docs/compare.md``), ``arguments``
            for ``make_step`` and ``function``; or a function that is called with ``make_step`` and
            returns the step.
        how: ``measured``, or ``estimated``: on tensors without data, for a card that this machine
            need not have.
        baseline: option that others are compared with; by default ``baseline`` if there is one,
            else the first.
        device: device whose memory is compared: ``cpu``, ``cuda:0``. By default the CUDA device
            that is used most, or the CPU if none is used; estimated, ``cuda``.
        card: name of the card to estimate for.
        capacity: bytes, or a text such as ``24 GiB``: find the largest batch within it;
            ``make_step`` is called with the batch. Measured on the CPU, the limit is for what the
            process takes after the program begins; on CUDA, for all of the device.
        batch: argument of ``make_step`` for the figures; None: no argument, or ``lowest`` if there
            is a capacity.
        lowest: smallest batch to try.
        highest: largest batch to try.
        warmup: steps before the timed ones.
        steps: timed steps of each repeat.
        repeats: runs of each option; 2 or more tell noise from difference.
        arguments: keyword arguments of ``make_step`` for all options.
        timeout: seconds after which a process is ended.
        executor: a ``concurrent.futures.Executor`` that runs the trials instead of this process,
            on this machine or others.
        framework: framework of the built-in settings: ``torch`` or ``tensorflow``, which has
            Keras's; by default the one that the program imports.
        explain: measured, record one more step of each option, after its first run, to tell what
            has most of the peak.

    Raises:
        UsageError: an argument makes no sense; one line says why.
    """
    if how not in ("measured", "estimated"):
        raise UsageError(f"how={how!r}: it is measured or estimated")
    measured = how == "measured"
    if measured and card is not None:
        raise UsageError(
            'card is for estimates (--estimated, how="estimated"): measured runs use this machine'
        )
    _check_numbers(lowest=lowest, highest=highest, repeats=repeats)
    spec = device_spec("cuda" if device is None else device, card, capacity)
    job = step_job(
        make_step,
        device=device,
        batch=batch,
        warmup=warmup,
        steps=steps,
        timeout=timeout,
        framework=framework,
        with_data=measured,
    )
    if batch is None and spec.capacity is not None and _takes_batch(job, measured=measured):
        job = replace(job, batch=lowest)
    known_options = checked_options(
        options,
        framework=job.framework,
        arguments=checked_arguments(arguments),
        with_data=measured,
    )
    baseline = _baseline(known_options, baseline)
    others = [each.variant for each in known_options if each.name != baseline]
    if job.program.is_script and measured and others and all(map(_needs_step, others)):
        raise UsageError(f"{job.program.name}: {NO_STEP}")
    if measured:
        trials = _measured_trials(
            job, known_options, repeats, spec.capacity, (lowest, highest), explain=explain
        )
    else:
        repeats, steps = 1, STEPS
        trials = [
            (each.name, partial(run_estimate, each, _request(job, each, spec), lowest, highest))
            for each in known_options
        ]
    results = _results(trials, executor)
    successes = [each for each in results if isinstance(each, Measurement | EstimatedOption)]
    return Comparison(
        outcomes=_outcomes(
            known_options, results, repeats, NO_CAPACITY if spec.capacity is None else NO_BATCH
        ),
        baseline=baseline,
        device=successes[0].device if successes else device or ("cpu" if measured else "cuda"),
        provenance=how,
        program=job.program.name,
        framework=job.framework,
        card="" if measured or spec.card is None else spec.card.name,
        capacity=spec.capacity,
        batch=job.batch,
        steps=steps,
        repeats=repeats,
        notes=tuple(_notes(successes, executor)) if measured else (),
        # machines of an executor may have other versions
        run=current_run(() if executor else (job.framework,)),
    )


def step_job(
    make_step: MakeStep,
    *,
    device: str | None,
    batch: int | None,
    warmup: int,
    steps: int,
    timeout: float | None,
    framework: str | None,
    with_data: bool = True,
) -> Job:
    """Return the job that runs a program unchanged.

    Raises:
        UsageError: an argument makes no sense; one line says why.
    """
    _check_numbers(warmup=warmup, steps=steps, batch=batch)
    if timeout is not None and (type(timeout) not in (int, float) or not timeout > 0):
        raise UsageError(f"timeout={timeout!r}: it is a number of seconds")
    asked = program(make_step, with_data=with_data)
    # checked_options() and suggest() refuse any other
    known = cast(Framework, framework or framework_of(make_step, asked))
    job = Job(asked.name, asked, Variant(), known, search_path(), device=device, batch=batch)
    if batch is not None and not _takes_batch(job, measured=with_data):
        raise UsageError(f"batch={batch}: {asked.name} is a script, which takes none")
    return replace(job, warmup=warmup, steps=steps, timeout=timeout)


def _takes_batch(job: Job, *, measured: bool) -> bool:
    # of scripts, only a traced fit() of TensorFlow can be given another batch
    return not job.program.is_script or (not measured and job.framework == "tensorflow")


def _request(job: Job, option: Option, spec: DeviceSpec) -> StepsRequest:
    settings = option.variant.settings
    shards = settings.get("shards", 1)
    job = replace(
        job, name=job.program.name, variant=option.variant, steps=STEPS, world_size=shards
    )
    return StepsRequest(job, spec, allocator_settings(settings.get("alloc_conf")))


def _measured_trials(
    job: Job,
    options: Sequence[Option],
    repeats: int,
    capacity: int | None,
    batches: tuple[int, int | None],
    *,
    explain: bool,
) -> list[Trial]:
    """Return the runs of every option, in turns, then the searches for the largest batch."""
    jobs = []
    for option in options:
        conf = option.variant.settings.get("alloc_conf")
        parse_settings(conf or "")
        environment = {} if conf is None else dict.fromkeys(VARIABLES, conf)
        jobs.append(replace(job, name=option.name, variant=option.variant, environment=environment))
    runs = [replace(each, explains=explain) for each in jobs] + jobs * (repeats - 1)
    trials: list[Trial] = [(each.name, partial(run_trial, each)) for each in runs]
    # with a capacity, only a script has no batch
    for each in jobs if capacity is not None and job.batch is not None else ():
        assert capacity is not None
        multiple = each.variant.settings.get("accumulate", 1)
        search = partial(largest_measured_batch, each, capacity, *batches, multiple)
        trials.append((each.name, search))
    return trials


def _outcomes(
    options: Sequence[Option], results: Sequence[Any], repeats: int, unsearched: LargestBatch
) -> tuple[Outcome, ...]:
    count = len(options)
    searches = results[repeats * count :] or [unsearched] * count
    return tuple(
        outcome_of(option, results[number : repeats * count : count], searches[number])
        for number, option in enumerate(options)
    )


def _needs_step(variant: Variant) -> bool:
    return bool(variant.settings.keys() - {"alloc_conf"})


def _notes(
    successes: Sequence[Measurement | EstimatedOption], executor: Executor | None
) -> Iterator[str]:
    if executor is not None:
        yield "an executor ran the processes: where it ran several at once, times say less"
    if len({each.device for each in successes}) > 1:
        yield "the options used different devices: their peaks do not compare"


def _check_numbers(**numbers: int | None) -> None:
    least = {"warmup": 0, "highest": numbers.get("lowest") or 1}
    for name, number in numbers.items():
        if number is None and name in ("highest", "batch"):
            continue
        if isinstance(number, bool) or not isinstance(number, int) or number < least.get(name, 1):
            raise UsageError(f"{name}={number}: it is a number, at least {least.get(name, 1)}")


def _baseline(options: Sequence[Option], wanted: str | None) -> str:
    names = [option.name for option in options]
    if wanted is None:
        return "baseline" if "baseline" in names else names[0]
    if wanted not in names:
        raise UsageError(f"baseline={wanted!r}: it is none of the options {', '.join(names)}")
    return wanted
