"""One option estimated: its figures on a card that need not be there, and its largest batch."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.trials.jobs import Choice, Program, Reason, Trouble
from tensorlens.planning.estimate.batches import MaxBatch, largest_batch
from tensorlens.planning.estimate.placement import place
from tensorlens.planning.estimate.request import settings_of
from tensorlens.planning.estimate.result import Estimate, Range
from tensorlens.planning.estimate.steps import StepsRequest
from tensorlens.planning.processes import ProgramFailed, Runner
from tensorlens.units import format_bytes


@dataclass(frozen=True, slots=True)
class Estimation:
    """What is asked."""

    name: str
    program: Program
    choice: Choice
    framework: str
    device: str = "cuda"
    card: str | None = None
    batch: int | None = None
    steps: int = 2
    capacity: int | None = None
    """What the largest batch has to fit into; None: it is not looked for."""
    lowest: int = 1
    highest: int | None = None


@dataclass(frozen=True, slots=True)
class Estimated:
    """What one option will need."""

    device: str
    card: str
    peak_allocated: int
    peak_reserved: int
    setup_allocated: int
    least_capacity: int
    """With what lies outside of the framework's memory."""
    largest_batch: int | None = None
    beyond: str = ""
    notes: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    peaks: Range | None = None
    """Between what bounds the peak is, where a part of it can only be bounded."""


def run_estimate(asked: Estimation, runner: Runner | None = None) -> Estimated | Trouble:
    """Estimate one option; whatever becomes of it, an answer says so.

    Args:
        asked: what is asked.
        runner: for steps that are traced; None: one for this estimate alone.
    """
    settings = asked.choice.settings
    if "alloc_conf" in settings and asked.device == "cpu":
        return Trouble(Reason.CANNOT, "alloc_conf is of CUDA's caching allocator, and this is cpu")
    try:
        # what an option leaves behind in a process of fake tensors must not meet the next one
        shared = runner if asked.framework != "torch" else None
        with nullcontext(shared) if shared is not None else Runner() as processes:
            return _estimated(asked, processes)
    except ProgramFailed as error:
        return error.trouble
    except UsageError as error:
        return Trouble(Reason.FAILED, str(error))
    except TensorlensError as error:
        return Trouble(Reason.CANNOT, str(error))


def _estimated(asked: Estimation, runner: Runner) -> Estimated:
    settings = asked.choice.settings
    request = StepsRequest(
        program=asked.program,
        place=place(asked.device, asked.card),
        steps=asked.steps,
        settings=settings_of(settings.get("alloc_conf")),
        choice=asked.choice,
        framework=asked.framework,
        world_size=settings.get("shards", 1),
        batch=asked.batch,
    )
    parts = settings.get("accumulate", 1)
    batch = _Batch()
    if asked.capacity is not None and asked.device != "cpu":
        found = largest_batch(
            lambda number: request.with_batch(number * parts).ask(runner),
            asked.capacity,
            -(-asked.lowest // parts),
            None if asked.highest is None else asked.highest // parts,
        )
        batch = _largest(found, parts)
    return _answer(asked, request.ask(runner), batch)


@dataclass(frozen=True)
class _Batch:
    """The largest batch, where it was looked for."""

    number: int | None = None
    beyond: str = ""


def _largest(found: MaxBatch, parts: int) -> _Batch:
    batch, beyond = int(found) * parts, ""
    after = found.estimates.get(found + 1) or (None if found else found.estimate)
    if after is not None:
        beyond = f"{batch + parts:,} would need {format_bytes(after.needed.point)}"
    elif found.reaches_end:
        beyond = "the largest that was to be tried"
    return _Batch(batch, beyond)


def _answer(asked: Estimation, answer: Estimate, batch: _Batch) -> Estimated:
    missing = {}
    if asked.capacity is not None and asked.device == "cpu":
        missing["largest_batch"] = "estimated for cuda only"
    return Estimated(
        device=answer.device,
        card="" if answer.card is None else answer.card.name,
        peak_allocated=answer.peak_allocated,
        peak_reserved=answer.peak_reserved,
        setup_allocated=answer.steps[0].allocated,
        least_capacity=answer.needed.point,
        largest_batch=batch.number,
        beyond=batch.beyond,
        notes=tuple(caution.text for caution in answer.warnings),
        missing=missing,
        peaks=answer.allocated,
    )
