"""Jobs: a program to run in a process of its own, and how that answers.

The seam for frameworks: a module in :data:`OPTIONS` has ``catalogue() -> Catalogue``, which
imports no framework, ``prepare()``, which imports what jobs need, ``run(job)``, which the process
calls, and ``step_watch(mark)``, which returns what watches the steps of a program
(:class:`~tensorlens.planning.step_facts.Watch`); ``mark`` gives the moment a name.
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
    """An option that cannot work here; the text is the reason, in one line."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One built-in setting that an option may have."""

    name: str
    takes: str
    """Its possible values, for a message: ``True or False``."""
    check: Callable[[Any], bool]
    what: str
    """One line: what it does."""


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
    """As a person calls it: ``train.py:make_step``."""
    parcel: bytes | None = None
    """A function as :mod:`.pickling` packs it."""
    module: str | None = None
    """The module it is in."""
    file: str | None = None
    """Or the file; run as a script where there is no function, or as ``python -m`` its module."""
    function: str | None = None
    arguments: Sequence[str] = ()
    """A script's ``sys.argv[1:]``."""
    global_settings: GlobalSettings | None = None
    """Of the process that asks; None: nothing of it matters."""

    @property
    def is_script(self) -> bool:
        """Whether there is no function to call with arguments."""
        return self.function is None and self.parcel is None


@dataclass(frozen=True, slots=True)
class Choice:
    """How a program is begun: with which arguments, and under which option."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the catalogue."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function that makes the step."""
    parcel: bytes | None = None
    """One's own function, packed: it is called with ``make_step`` and returns the step."""


class Mode(StrEnum):
    """How the steps of a job are run."""

    MEASURED = "measured"
    """For real."""
    FAKE = "fake"
    """On fake tensors of torch."""
    TRACED = "traced"
    """Built for real, and traced where it would train a model."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a program."""

    name: str
    """As messages call it: the program's, or the option's."""
    program: Program
    choice: Choice
    framework: Framework
    path: Sequence[str]
    """``sys.path`` of whoever asks."""
    mode: Mode = Mode.MEASURED
    device: str | None = None
    """Whose figures are wanted; None: the accelerator that is used most, else the CPU."""
    card: Card | None = None
    """Of an estimate for CUDA."""
    batch: int | None = None
    """Given to the function that makes the step; None: it is called without one."""
    batch_argument: str = ""
    """The name of the argument that takes it; empty: the first one."""
    warmup: int = 1
    steps: int = 3
    of_keras: Mapping[str, Any] = field(default_factory=dict)
    """Options of a Keras model, if a program on fake tensors makes or trains one."""
    world_size: int = 1
    records: bool = False
    """Whether all of the program is recorded, for :attr:`Measured.recorded`."""
    explains: bool = False
    """Whether one step more is recorded, to tell what has most of the peak."""
    limit: int | None = None
    """Bytes of memory that there are to be; None: as many as there are."""
    rehearsal: int = 1
    """The batch of one step before there is a limit, for what libraries load when first used."""
    timeout: float | None = None
    """Seconds after which the process is ended."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of one run; sizes are bytes."""

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
    """Bytes that loaders with workers hold when their queues are full."""
    step_peaks: tuple[int, ...] = ()
    """Peaks with set-up and one step alone, for each step after the
    warm-up; of TensorFlow's CPU allocator, of others empty."""
    notes: tuple[str, ...] = ()
    at_peak: Mapping[str, str] = field(default_factory=dict)
    """As :attr:`tensorlens.planning.compare.result.Outcome.at_peak`."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Figure to why it is not known."""
    recorded: tuple[Recording, StepFacts] | None = None


class Reason(StrEnum):
    """Why a run has no figures."""

    OUT_OF_MEMORY = "out of memory"
    CANNOT = "cannot"
    """An option, or what is asked, cannot work here."""
    USAGE = "usage"
    """It was asked what makes no sense."""
    FAILED = "failed"
    """The program raised an error, or its process ended."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A run without figures."""

    kind: Reason
    text: str
    """One line."""
    details: str = ""
    """The program's traceback, and what it wrote last."""
    signal: str = ""
    """Name of the signal that ended its process; empty where none did."""


Result = Measured | Trace | Trouble


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    steps_done: int


@dataclass(frozen=True, slots=True)
class JobStart:
    """A job has a process of its own now."""

    pid: int


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The process of a job is over."""

    code: int
    """As ``subprocess`` has it: negative for a signal."""


Message = Result | Progress | JobStart | JobEnd


class WakeRequest:
    """There is a job again: the answer is whether all that programs imported is as it was."""
