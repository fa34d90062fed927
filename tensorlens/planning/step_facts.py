"""Facts about a program's steps that a log of allocations does not have."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tensorlens.heap.reference_names import KEPT_BY_TRACEBACK
from tensorlens.records.logs.events import OWN_MARK

BACKWARD = f"{OWN_MARK}backward"
"""Name of the mark at the begin of a backward pass."""


@dataclass(frozen=True, slots=True)
class RepeatedBlock:
    """One of the repeated blocks of a model."""

    path: str
    """Path as in recordings: ``net.layers.0``."""
    kind: str
    """Class name."""
    list_length: int | None = None
    """Number of modules in the torch list that holds it; 0: a ``ModuleDict``; None: unknown."""


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer of the program."""

    kind: str
    """Class name."""
    momentum: bool
    """Whether it was made with momentum (``momentum=0.9``)."""
    decays: bool = False
    """Whether a torch optimizer has a weight decay other than the default of its class."""
    largest: int = 0
    """Bytes of its largest parameter; torch only."""
    state: int | None = None
    """Bytes of its state that plain SGD would not have; None: not counted."""
    rate: float | None = None
    """Learning rate that it was made with; None if unknown or not a number."""


@dataclass(frozen=True, slots=True)
class UnusedVariable:
    """A local variable that lives through backward but is not needed there or read later."""

    name: str
    function: str
    filename: str
    lineno: int
    """Line that calls backward."""
    address: int
    """Address of its storage."""


@dataclass(frozen=True, slots=True)
class PrefetchQueue:
    """A loader that makes batches ahead of the step."""

    name: str
    """``DataLoader, 2 workers x prefetch 2``."""
    batches: int
    """Highest number of batches that were requested and not yet used."""
    workers: int
    batch_nbytes: int
    """Bytes of the largest batch."""
    memory: str
    """Where batches wait: ``shared memory``."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Facts about the steps of a program."""

    model: str = ""
    """The program's name for its only model; empty if unknown."""
    blocks: tuple[RepeatedBlock, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    sets_to_none: bool | None = None
    """``set_to_none`` of the last ``zero_grad()``; None without a call."""
    has_low_precision: bool = False
    """Whether the step uses autocast or parameters of lower precision."""
    unused_variables: tuple[UnusedVariable, ...] = ()
    queues: tuple[PrefetchQueue, ...] = ()
    """Loaders in use at the time when most bytes were requested ahead."""
    is_whole: bool = False
    """Whether it is a whole program, to which built-in options cannot be applied."""
    recomputes: bool = False
    """Whether the program already recomputes something in backward."""
    has_cache: bool = False
    """Whether blocks fill a cache as they run (``use_cache`` of transformers)."""
    own_checkpoints: str = ""
    """The models' own method for checkpoints, with arguments; empty if there is none."""
    is_compiled: bool = False
    """Whether there is a compiled Keras model, whose train step can be traced."""
    is_graph: bool = False
    """Whether steps run as a graph, whose operations may not run in the program's order."""
    sparse_gradient_bytes: int = 0
    """Bytes of parameters with sparse gradients: plain SGD writes only to their rows."""


def plain_name(name: str) -> str:
    """Return a name as code writes it, without ``__main__`` and remarks on what keeps it."""
    return name.replace(KEPT_BY_TRACEBACK, "").replace("__main__.", "")


class Watch(Protocol):
    """Watches a program's steps to collect :class:`StepFacts`."""

    is_last: bool = False
    """Whether the step is the last one."""

    def on(self) -> AbstractContextManager[None]:
        """Watch the steps that run meanwhile."""
        ...

    def facts(self, is_whole: bool) -> StepFacts:
        """Return the facts so far."""
        ...
