"""One option estimated: its figures on a card that need not be there, and its largest batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.estimating.asking import estimate
from tensorlens.estimating.batches import max_batch
from tensorlens.estimating.worker import ProgramFailed
from tensorlens.frameworks.trials import CANNOT, FAILED, Choice, Program, Trouble
from tensorlens.units import format_bytes

_BEGIN = {"torch": "tensorlens.frameworks.torch.options.program:begin"}
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


def run_estimate(asked: Estimation) -> Estimated | Trouble:
    """Estimate one option; whatever becomes of it, an answer says so."""
    settings = asked.choice.settings
    if "alloc_conf" in settings and asked.device == "cpu":
        return Trouble(CANNOT, "alloc_conf is of CUDA's caching allocator, and this is cpu")
    try:
        return _estimated(asked)
    except ProgramFailed as error:
        if str(error).startswith(_OF_PROGRAMS):
            return Trouble(FAILED, str(error).removeprefix(_FAILED), error.details)
        # what an option says of itself
        return Trouble(CANNOT, str(error))
    except UsageError as error:
        return Trouble(FAILED, str(error))
    except TensorlensError as error:
        return Trouble(CANNOT, str(error))


def _estimated(asked: Estimation) -> Estimated | Trouble:
    options: dict[str, Any] = {
        "steps": asked.steps,
        "settings": asked.choice.settings.get("alloc_conf"),
        "world_size": asked.choice.settings.get("shards", 1),
    }
    begin = _BEGIN[asked.framework]
    arguments = {"program": asked.program, "choice": asked.choice}
    parts = asked.choice.settings.get("accumulate", 1)
    missing: dict[str, str] = {}
    batch, beyond, size = None, "", asked.batch
    if asked.capacity is not None and asked.device != "cpu":
        batches = {} if asked.highest is None else {"highest": asked.highest // parts}
        found = max_batch(
            _with_batch(begin),
            asked.capacity,
            card=asked.card,
            lowest=-(-asked.lowest // parts),
            arguments={**arguments, "times": parts},
            **batches,
            **options,
        )
        batch = int(found) * parts
        after = found.estimates.get(found + 1) or (None if found else found.estimate)
        if after is not None:
            beyond = f"{batch + parts:,} would need {format_bytes(after.needed.point)}"
        elif found.reaches_end:
            beyond = "the largest that was to be tried"
    elif asked.capacity is not None:
        missing["largest_batch"] = "estimated for cuda only"
    answer = estimate(
        begin,
        device=asked.device,
        card=asked.card,
        arguments={**arguments, "batch": size},
        **options,
    )
    return Estimated(
        device=answer.device,
        card="" if answer.card is None else answer.card.name,
        peak_allocated=answer.peak_allocated,
        peak_reserved=answer.peak_reserved,
        setup_allocated=answer.steps[0].allocated,
        least_capacity=answer.needed.point,
        largest_batch=batch,
        beyond=beyond,
        notes=tuple(caution.text for caution in answer.warnings),
        missing=missing,
    )


def _with_batch(begin: str) -> str:
    return f"{begin}_batch"
