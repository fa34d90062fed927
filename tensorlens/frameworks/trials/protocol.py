"""What the process that runs fake steps is asked, and how it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorlens.frameworks.trials.caller import Caller
from tensorlens.records.cards import Card
from tensorlens.records.traces import Trace


@dataclass(frozen=True, slots=True)
class Program:
    """What to run: a function on its way, one to import, or a script."""

    name: str
    """As a person calls it: ``train.py:make_step``."""
    parcel: bytes | None = None
    """A function as :mod:`.pickling` packs it."""
    module: str | None = None
    """The module it is in."""
    file: str | None = None
    """Or the file; run as a script where there is no function."""
    function: str | None = None
    arguments: Sequence[str] = ()
    """What a script finds in ``sys.argv[1:]``."""
    caller: Caller | None = None
    """The process that asks; None: nothing of it matters."""
    carried: Sequence[str] = ()
    """Names of the caller's main module whose values the parcel has."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that the function of a program is called with."""

    size: int
    keyword: str = ""
    """The name of the argument; empty: the first one."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    program: Program
    device: str
    """``cuda`` or ``cpu``."""
    card: Card | None
    steps: int
    path: Sequence[str]
    """``sys.path`` of whoever asks."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function that makes the step."""
    batch: Batch | None = None
    """None: the function is called without one."""
    of_keras: Mapping[str, Any] = field(default_factory=dict)
    """What is asked of a Keras model, if the program makes one, or trains one on TensorFlow."""
    world_size: int = 1
    devices: int = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    steps_done: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run has no trace."""

    text: str
    """One line."""
    details: str = ""
    """The program's own traceback, and what it wrote last."""
    is_usage: bool = False
    """Whether it was asked what makes no sense."""


Answer = Progress | Failure | Trace
