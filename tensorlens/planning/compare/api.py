"""``compare()``: what each of several memory options takes and costs, on the same step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import replace
from typing import Any, cast

from tensorlens.errors import UsageError
from tensorlens.guards import reason
from tensorlens.planning.allocators.settings import VARIABLES, parse_settings
from tensorlens.planning.card import DeviceSpec, device_spec
from tensorlens.planning.compare.options import Given, Option, checked
from tensorlens.planning.compare.outcomes import (
    NO_BATCH,
    NO_CAPACITY,
    BatchSearch,
    BatchSearchResult,
    EstimateOutcome,
    EstimateRequest,
    outcome_of,
    run_estimate,
    run_search,
)
from tensorlens.planning.compare.result import Comparison, Outcome
from tensorlens.planning.estimate.api import (
    StepsRequest,
    allocator_settings,
    checked_arguments,
)
from tensorlens.planning.estimate.target import STEPS, MakeStep, framework_of, program, search_path
from tensorlens.planning.processes import shared_runner
from tensorlens.planning.progress import Done, progress
from tensorlens.planning.trace import Framework
from tensorlens.planning.trials.jobs import NO_STEP, Choice, Job, Measured, Reason, Trouble
from tensorlens.records.run import current_run

Work = Job | BatchSearch | EstimateRequest


def run_work(work: Work) -> Any:
    """Return what a run, a search or an estimate comes to; an executor calls it anywhere."""
    if isinstance(work, BatchSearch):
        return run_search(work)
    if isinstance(work, EstimateRequest):
        return run_estimate(work)
    with shared_runner() as processes:
        return processes.run(work)


def _results(works: Sequence[Work], executor: Executor | None) -> list[Any]:
    """Return what each comes to; further repeats of an option that has failed are not run."""
    with progress("compare", "trial", len(works)) as done:
        if executor is not None:
            return _executed(works, executor, done)
        found: list[Any] = []
        failed: dict[str, Trouble] = {}
        with shared_runner():
            for number, work in enumerate(works):
                done(number, work.name)
                found.append(failed.get(work.name) or run_work(work))
                if isinstance(found[-1], Trouble):
                    failed[work.name] = found[-1]
    return found


def _executed(works: Sequence[Work], executor: Executor, done: Done) -> list[Any]:
    """Return the results; what fails on the way to another machine is a :class:`Trouble`."""
    if not hasattr(executor, "submit"):
        raise UsageError(
            f"executor is a {type(executor).__name__}: give a concurrent.futures.Executor"
        )
    found: list[Any] = [None] * len(works)
    futures: dict[Future[Any], int] = {}
    try:
        for number, work in enumerate(works):
            futures[executor.submit(run_work, work)] = number
        for count, future in enumerate(as_completed(futures), 1):
            number = futures[future]
            try:
                found[number] = future.result()
            except UsageError:
                raise
            except Exception as error:
                text = f"the executor failed: {reason(error)[:300]}"
                found[number] = Trouble(Reason.FAILED, text)
            done(count, works[number].name)
    finally:
        for future in futures:
            future.cancel()
    return found


def compare(
    make_step: MakeStep,
    options: Mapping[str, Given],
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
) -> Comparison:
    """Return what the same step takes, and what it costs, under each of several options.

    Each repeat of an option runs in a process of its own, one after the other, and the repeats of
    all options take turns. An option that cannot work here, or whose process fails or crashes, is
    a row that says why.

    Args:
        make_step: builds model, optimizer and data and returns ``step()``, which runs one step and
            may return its loss. Or ``"module:function"`` or ``"file.py:function"``.
        options: name to option: a dict of built-in settings (``docs/compare.md``), of
            ``arguments`` for ``make_step`` and ``function``; or one's own function, which is
            called with ``make_step`` and returns the step.
        how: ``measured``, or ``estimated``: on tensors without data, for a card that need not be
            there.
        baseline: the option that others are compared with; by default ``baseline`` if there is
            one, else the first.
        device: whose memory is compared: ``cpu``, ``cuda:0``. By default the CUDA device that is
            used most, or the CPU where none is used; estimated, ``cuda``.
        card: of an estimate, the card's name.
        capacity: bytes, or a text such as ``24 GiB``: the largest batch under it is looked for;
            ``make_step`` is called with the batch. Measured on the CPU it is what the process may
            take beyond what it has when the program begins; on CUDA, all of the device.
        batch: what ``make_step`` is called with for the figures; None calls it without one, or
            with ``lowest`` where there is a capacity.
        lowest: the smallest batch worth trying.
        highest: the largest.
        warmup: steps before those that are timed.
        steps: how many are timed in each repeat.
        repeats: how many times each option is run; 2 or more tell noise from difference.
        arguments: keyword arguments of ``make_step`` for all options.
        timeout: seconds after which one process is ended.
        executor: what runs the processes in place of this one: any
            ``concurrent.futures.Executor``, of this machine or of others.
        framework: whose built-in settings the options are of: ``torch`` or ``tensorflow``, which
            has Keras's; by default what the program imports.

    Raises:
        UsageError: something of it makes no sense; one line says what.
    """
    if how not in ("measured", "estimated"):
        raise UsageError(f"how={how!r}: it is measured or estimated")
    measured = how == "measured"
    if measured and card is not None:
        raise UsageError(
            'card is for estimates (--estimated, how="estimated"): measured runs use this machine'
        )
    _check_numbers(
        lowest=lowest, highest=highest, warmup=warmup, steps=steps, repeats=repeats, batch=batch
    )
    if timeout is not None and (type(timeout) not in (int, float) or not timeout > 0):
        raise UsageError(f"timeout={timeout!r}: it is a number of seconds")
    spec = device_spec("cuda" if device is None else device, card, capacity)
    asked = program(make_step, with_data=measured)
    # checked() refuses any other
    known_framework = cast(Framework, framework or framework_of(make_step, asked))
    own = checked_arguments(arguments)
    known_options = checked(options, framework=known_framework, arguments=own, with_data=measured)
    baseline = _baseline(known_options, baseline)
    others = [each.choice for each in known_options if each.name != baseline]
    if asked.is_script and measured and others and all(map(_is_of_a_step, others)):
        raise UsageError(f"{asked.name}: {NO_STEP}")
    # of a script TensorFlow's traced fit() alone can be given another batch
    if not asked.is_script or (not measured and known_framework == "tensorflow"):
        batch = lowest if batch is None and spec.capacity is not None else batch
    elif batch is not None:
        raise UsageError(f"batch={batch}: {asked.name} is a script, which takes none")
    job = Job("", asked, Choice(), known_framework, search_path(), device=device, batch=batch)
    job = replace(job, warmup=warmup, steps=steps, timeout=timeout)
    batches = lowest, highest
    works: Sequence[Work]
    if measured:
        works = _trials(job, known_options, repeats, spec.capacity, batches)
    else:
        repeats, steps = 1, STEPS
        works = [_estimate_request(job, each, spec, batches) for each in known_options]
    found = _results(works, executor)
    known = [each for each in found if isinstance(each, Measured | EstimateOutcome)]
    return Comparison(
        outcomes=_outcomes(
            known_options, found, repeats, NO_CAPACITY if spec.capacity is None else NO_BATCH
        ),
        baseline=baseline,
        device=known[0].device if known else device or ("cpu" if measured else "cuda"),
        provenance=how,
        program=asked.name,
        framework=known_framework,
        card=next((each.card for each in known if isinstance(each, EstimateOutcome)), ""),
        capacity=spec.capacity,
        batch=batch,
        steps=steps,
        repeats=repeats,
        notes=tuple(_notes(known, executor)) if measured else (),
        # an executor may be of machines that have another version
        run=current_run(() if executor else (known_framework,)),
    )


def _estimate_request(
    job: Job, option: Option, spec: DeviceSpec, batches: tuple[int, int | None]
) -> EstimateRequest:
    settings = option.choice.settings
    shards = settings.get("shards", 1)
    job = replace(job, name=job.program.name, choice=option.choice, steps=STEPS, world_size=shards)
    request = StepsRequest(job, spec, allocator_settings(settings.get("alloc_conf")))
    return EstimateRequest(option, request, *batches)


def _trials(
    job: Job,
    options: Sequence[Option],
    repeats: int,
    capacity: int | None,
    batches: tuple[int, int | None],
) -> list[Work]:
    """Return the runs of every option, in turns, then the searches for the largest batch."""
    jobs = []
    for option in options:
        conf = option.choice.settings.get("alloc_conf")
        parse_settings(conf or "")
        environment = {} if conf is None else dict.fromkeys(VARIABLES, conf)
        jobs.append(replace(job, name=option.name, choice=option.choice, environment=environment))
    works: list[Work] = [replace(each, explains=True) for each in jobs]
    works += [*jobs] * (repeats - 1)
    # without a batch it is a script, which takes none
    for each in jobs if capacity is not None and job.batch is not None else ():
        assert capacity is not None
        multiple = each.choice.settings.get("accumulate", 1)
        works.append(BatchSearch(each, capacity, *batches, multiple))
    return works


def _outcomes(
    options: Sequence[Option], found: Sequence[Any], repeats: int, unsearched: BatchSearchResult
) -> tuple[Outcome, ...]:
    count = len(options)
    searches = found[repeats * count :] or [unsearched] * count
    return tuple(
        outcome_of(option, found[number : repeats * count : count], searches[number])
        for number, option in enumerate(options)
    )


def _is_of_a_step(choice: Choice) -> bool:
    return bool(choice.settings.keys() - {"alloc_conf"})


def _notes(known: Sequence[Measured | EstimateOutcome], executor: Executor | None) -> Iterator[str]:
    if executor is not None:
        yield "an executor ran the processes: where it ran several at once, times say less"
    if len({each.device for each in known}) > 1:
        yield "the options used different devices: their peaks do not compare"


def _check_numbers(*, lowest: int, **others: int | None) -> None:
    least = {"warmup": 0, "highest": lowest}
    for name, number in {"lowest": lowest, **others}.items():
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
