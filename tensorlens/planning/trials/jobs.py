"""Jobs: a program to run in another process, and the answers.

A framework's module in :data:`OPTIONS` has ``catalogue() -> Catalogue``, which imports no
framework, ``prepare()``, which imports all that jobs need, ``run(job, tell)``, which the process
calls (``tell`` with the number of steps done, of an estimate), and ``step_watch(mark)``, which
returns a :class:`~tensorlens.planning.step_facts.Watch`; ``mark`` names a moment.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tensorlens.errors import TensorlensError
from tensorlens.planning.card import Card
from tensorlens.planning.trace import Framework, Trace
from tensorlens.planning.trials.global_settings import GlobalSettings

if TYPE_CHECKING:
    from tensorlens.planning.step_facts import StepFacts
    from tensorlens.recording.recordings import Recording

OPTIONS: Mapping[Framework, str] = {
    "torch": "tensorlens.planning.torch.options.catalogue",
    "tensorflow": "tensorlens.planning.tensorflow",
}
"""Framework to the module of its built-in options."""


NO_STEP = "built-in settings need a make_step() that returns step(): this is a whole program"


class CannotApply(TensorlensError):
    """An option cannot work here; the text is the reason, in one line."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One built-in setting that an option may have."""

    name: str
    takes: str
    """Possible values, for messages: ``True or False``."""
    check: Callable[[Any], bool]
    what: str
    """Its effect, in one line."""


def choice(name: str, known: Sequence[str], effect: str) -> Setting:
    """Return a setting that takes one of several texts."""
    takes = f"one of {', '.join(known)}"
    return Setting(name, takes, lambda value: isinstance(value, str) and value in known, effect)


def flag(name: str, effect: str) -> Setting:
    """Return a setting that is on or off."""
    return Setting(name, "True or False", lambda value: isinstance(value, bool), effect)


Catalogue = Mapping[str, Setting]


def catalogue(framework: Framework) -> Catalogue:
    """Return the built-in settings of a framework, without importing it."""
    found: Catalogue = importlib.import_module(OPTIONS[framework]).catalogue()
    return found


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run: a pickled function, one to import, or a script."""

    name: str
    """Name for people: ``train.py:make_step``."""
    parcel: bytes | None = None
    """Function as packed by :mod:`.pickling`."""
    module: str | None = None
    """Module of the function."""
    file: str | None = None
    """File of the function or script; with a module and no function it runs as ``python -m``."""
    function: str | None = None
    arguments: Sequence[str] = ()
    """``sys.argv[1:]`` of a script."""
    global_settings: GlobalSettings | None = None
    """Settings of the asking process; None: they do not matter."""

    @property
    def is_script(self) -> bool:
        """Whether it is run as a whole, without a function to call."""
        return self.function is None and self.parcel is None


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of a program: its arguments and its option."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Built-in settings by name."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function that makes the step."""
    parcel: bytes | None = None
    """Packed function of the user's, which is called with ``make_step`` and returns the step."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a program."""

    name: str
    """Name for messages: the program's, or the option's."""
    program: Program
    variant: Variant
    framework: Framework
    path: Sequence[str]
    """``sys.path`` of the asking process."""
    estimated: bool = False
    """Whether it is for an estimate: torch's steps run on fake tensors; a program of TensorFlow is
    built with data, and its training is traced."""
    device: str | None = None
    """Device of the figures; None: the most used accelerator, or the CPU."""
    card: Card | None = None
    """Card of an estimate for CUDA."""
    batch: int | None = None
    """Batch that the function that makes the step is given; None: it is called without one."""
    batch_argument: str = ""
    """Name of the argument for the batch; empty: the first one."""
    warmup: int = 1
    steps: int = 3
    keras_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the Keras model that an estimated program makes or trains, if it does."""
    world_size: int = 1
    records: bool = False
    """Whether the whole program is recorded, for :attr:`Measurement.recorded`."""
    explains: bool = False
    """Whether a further step is recorded, to name the largest parts of the peak."""
    limit: int | None = None
    """Limit of the device's memory in bytes; None: no limit."""
    rehearsal: int = 1
    """Batch of a step that loads libraries before the limit is set."""
    timeout: float | None = None
    """Seconds after which the process is killed."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_fake(self) -> bool:
        """Whether its steps run on fake tensors, in a process that others share."""
        return self.estimated and self.framework == "torch"

    @property
    def keras_arguments(self) -> Mapping[str, Any]:
        """:attr:`keras_options` with the batch as ``batch_size``, if there is one."""
        given = {} if self.batch is None else {"batch_size": self.batch}
        return {**self.keras_options, **given}


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of one run; sizes are bytes."""

    device: str
    peak_allocated: int
    peak_reserved: int | None
    setup_allocated: int
    """Allocated bytes when the first step begins."""
    seconds: tuple[float, ...]
    """Seconds of each step after the warm-up."""
    losses: tuple[float, ...] | None
    """Loss of each step; None if ``step()`` returns none."""
    held_ahead: int | None = None
    """Bytes that loaders with workers hold when their queues are full."""
    step_peaks: tuple[int, ...] = ()
    """The larger of the peaks of the set-up and of a step, for each step after the warm-up; of
    TensorFlow's CPU allocator only."""
    notes: tuple[str, ...] = ()
    at_peak: Mapping[str, str] = field(default_factory=dict)
    """As :attr:`tensorlens.planning.compare.result.Outcome.at_peak`."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Figure to the reason why it is unknown."""
    recorded: tuple[Recording, StepFacts] | None = None


class FailureKind(StrEnum):
    """Why a run has no figures."""

    OUT_OF_MEMORY = "out of memory"
    CANNOT = "cannot"
    """The option or the request cannot work here."""
    USAGE = "usage"
    """The request makes no sense."""
    FAILED = "failed"
    """The program raised an error, or its process ended."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A run without figures."""

    kind: FailureKind
    text: str
    """The reason, in one line."""
    details: str = ""
    """The program's traceback and its last output."""
    signal: str = ""
    """Name of the signal that ended the process; empty if none did."""


Result = Measurement | Trace | Failure


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run."""

    steps_done: int


@dataclass(frozen=True, slots=True)
class JobStart:
    """The process of a job has started."""

    pid: int


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The process of a job has ended."""

    code: int
    """Exit code as in ``subprocess``: negative for a signal."""


Message = Result | Progress | JobStart | JobEnd


class WakeRequest:
    """Request to tell whether the files that programs imported are unchanged."""
