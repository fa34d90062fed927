"""One option estimated: its figures on a card that need not be there, and its largest batch."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.trials.trial import CANNOT, FAILED, Choice, Program, Trial, Trouble
from tensorlens.planning.compare.launching import Launcher
from tensorlens.planning.compare.tracing import TracedProgram, TraceFailed
from tensorlens.planning.estimate.api import estimate
from tensorlens.planning.estimate.batches import MaxBatch, max_batch
from tensorlens.planning.estimate.cards import find_card
from tensorlens.planning.estimate.result import Estimate, Range
from tensorlens.planning.estimate.target import search_path
from tensorlens.planning.estimate.worker import ProgramFailed
from tensorlens.units import format_bytes

_BEGIN = {"torch": "tensorlens.frameworks.torch.options.program:begin"}
"""Of a framework whose steps run on tensors without data; of any other a step is traced."""
_FAILED = "the program failed: "
_OF_PROGRAMS = (_FAILED, "the process of the program ended")


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


def run_estimate(asked: Estimation, launcher: Launcher | None = None) -> Estimated | Trouble:
    """Estimate one option; whatever becomes of it, an answer says so.

    Args:
        asked: what is asked.
        launcher: what traces steps; None: one for this estimate alone.
    """
    settings = asked.choice.settings
    if "alloc_conf" in settings and asked.device == "cpu":
        return Trouble(CANNOT, "alloc_conf is of CUDA's caching allocator, and this is cpu")
    try:
        if asked.framework in _BEGIN:
            return _estimated(asked)
        with nullcontext(launcher) if launcher is not None else Launcher() as tracing:
            return _traced(asked, tracing)
    except TraceFailed as error:
        return error.trouble
    except ProgramFailed as error:
        if str(error).startswith(_OF_PROGRAMS):
            return Trouble(FAILED, str(error).removeprefix(_FAILED), error.details)
        # what an option says of itself
        return Trouble(CANNOT, str(error))
    except UsageError as error:
        return Trouble(FAILED, str(error))
    except TensorlensError as error:
        return Trouble(CANNOT, str(error))


def _estimated(asked: Estimation) -> Estimated:
    options: dict[str, Any] = {
        "steps": asked.steps,
        "settings": asked.choice.settings.get("alloc_conf"),
        "world_size": asked.choice.settings.get("shards", 1),
    }
    begin = _BEGIN[asked.framework]
    arguments = {"program": asked.program, "choice": asked.choice}
    parts = asked.choice.settings.get("accumulate", 1)
    batch = _Batch()
    if asked.capacity is not None and asked.device != "cpu":
        batches = {} if asked.highest is None else {"highest": asked.highest // parts}
        found = max_batch(
            begin,
            asked.capacity,
            card=asked.card,
            lowest=-(-asked.lowest // parts),
            arguments={**arguments, "times": parts},
            **batches,
            **options,
        )
        batch = _largest(found, parts)
    answer = estimate(
        begin,
        device=asked.device,
        card=asked.card,
        arguments={**arguments, "batch": asked.batch},
        **options,
    )
    return _answer(asked, answer, batch)


def _traced(asked: Estimation, launcher: Launcher) -> Estimated:
    trial = Trial(
        name=asked.name,
        program=asked.program,
        choice=asked.choice,
        framework=asked.framework,
        path=search_path(),
        device=asked.device,
        batch=asked.batch,
        is_traced=True,
        card=None if asked.device == "cpu" else find_card(asked.card),
    )
    program = TracedProgram(trial, launcher, asked.capacity)
    batch = _Batch()
    if asked.capacity is not None and asked.device != "cpu":
        batch = _largest(program.largest(asked.lowest, asked.highest), 1)
    return _answer(asked, program.estimate(), batch)


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
