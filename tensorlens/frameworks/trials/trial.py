"""One option tried in a process of its own: what is asked of a framework, and what it answers.

The seam for frameworks: a module in :data:`OPTIONS` has ``catalogue() -> Catalogue``, which
imports no framework, ``prepare()``, which imports what trials need, and ``run(trial) ->
Measured``, which the process calls; where a trial may be estimated so, ``trace(trial) -> Trace``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorlens.errors import TensorlensError
from tensorlens.frameworks.trials.protocol import Failure, Program
from tensorlens.records.cards import Card
from tensorlens.records.traces import Trace

OPTIONS = {
    "torch": "tensorlens.frameworks.torch.options",
    "tensorflow": "tensorlens.frameworks.tensorflow.options",
}
"""Framework to the module of its built-in options."""

OUT_OF_MEMORY, CANNOT, FAILED = "out of memory", "cannot", "failed"
"""Why a trial has no figures: no room, an option that cannot work here, anything else."""


class CannotApply(TensorlensError):
    """An option that cannot work here; the text is the reason, in one line."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One built-in setting that an option may have."""

    name: str
    takes: str
    """What its value is, for a message: ``True or False``."""
    check: Callable[[Any], bool]
    what: str
    """One line: what it does."""


Catalogue = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Choice:
    """One option, on its way to a process."""

    settings: Mapping[str, Any]
    """Of the catalogue."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function that makes the step."""
    parcel: bytes | None = None
    """One's own function, packed: it is called with ``make_step`` and returns the step."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of one option."""

    name: str
    program: Program
    choice: Choice
    framework: str
    path: Sequence[str]
    """``sys.path`` of whoever asks."""
    device: str | None = None
    """Whose figures are wanted; None: the accelerator that is used most, else the CPU."""
    batch: int | None = None
    """Given to the function that makes the step; None: it is called without one."""
    warmup: int = 1
    steps: int = 3
    limit: int | None = None
    """Bytes of memory that there are to be; None: as many as there are."""
    rehearsal: int | None = None
    """The batch of one step before there is a limit, for what libraries load when first used."""
    timeout: float | None = None
    """Seconds after which the process is ended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    is_traced: bool = False
    """Whether the step is traced, for an estimate, and not run."""
    card: Card | None = None
    """Of an estimate for CUDA."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run came to; sizes are bytes."""

    device: str
    peak_allocated: int
    peak_reserved: int | None
    setup_allocated: int
    """When the first step begins."""
    seconds: tuple[float, ...]
    """Of each step after the warm-up."""
    losses: tuple[float, ...] | None
    """Of every step; None where ``step()`` returns none."""
    held_ahead: int | None = None
    """What loaders with workers hold when their queues are full."""
    step_peaks: tuple[int, ...] = ()
    """What would have been the peak with set-up and one step alone, for each step after the
    warm-up; of TensorFlow's CPU allocator, of others empty."""
    notes: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """Figure to why it is not known."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a run has no figures."""

    kind: str
    """:data:`OUT_OF_MEMORY`, :data:`CANNOT` or :data:`FAILED`."""
    text: str
    details: str = ""
    """The program's traceback, and what it wrote last."""


Result = Measured | Trouble
Message = Result | Trace

__all__ = ["Failure", "Measured", "Program", "Result", "Trial", "Trouble"]


def catalogue(framework: str) -> Catalogue:
    """Return the built-in settings of a framework, without importing it."""
    found: Catalogue = importlib.import_module(OPTIONS[framework]).catalogue()
    return found


def prepare(framework: str) -> None:
    """Import what trials of a framework need; nothing of it runs."""
    importlib.import_module(OPTIONS[framework]).prepare()


def run(trial: Trial) -> Result | Trace:
    """Run or trace a trial in this process."""
    module = importlib.import_module(OPTIONS[trial.framework])
    result: Result | Trace = module.trace(trial) if trial.is_traced else module.run(trial)
    return result
