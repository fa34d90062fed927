"""Facts of a program's steps that no log of allocations has."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tensorlens.heap.reference_names import KEPT
from tensorlens.records.logs.events import OWN_MARK

BACKWARD = f"{OWN_MARK}backward"
"""Name of the marks where a backward pass begins."""


@dataclass(frozen=True, slots=True)
class RepeatedBlock:
    """One of the blocks that a model repeats."""

    path: str
    """As recordings have it: ``net.layers.0``."""
    kind: str
    """The name of its class."""
    list_length: int | None = None
    """Number of modules in the torch list that holds it; 0: a ``ModuleDict``; None: unknown."""


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer of the program."""

    kind: str
    """The name of its class."""
    momentum: bool
    """Whether it is one that keeps momentum because it was asked to (``momentum=0.9``)."""
    decays: bool = False
    """Whether an optimizer of torch was asked for a weight decay other than its class's own."""
    largest: int = 0
    """Bytes of its largest parameter, of torch."""
    state: int | None = None
    """Bytes that it keeps for parameters and plain SGD would not; None: not counted."""
    rate: float | None = None
    """Learning rate that it was made with; None: not known, or not one number."""


@dataclass(frozen=True, slots=True)
class UnusedVariable:
    """A variable of a function that waits for backward, which backward has no use for."""

    name: str
    function: str
    filename: str
    lineno: int
    """The line that calls backward."""
    address: int
    """Of its storage."""


@dataclass(frozen=True, slots=True)
class PrefetchQueue:
    """A loader that has batches made ahead of the step."""

    name: str
    """``DataLoader, 2 workers x prefetch 2``."""
    batches: int
    """How many were asked for and not used so far, at most."""
    workers: int
    batch_nbytes: int
    """Of the largest batch."""
    memory: str
    """Where they wait: ``shared memory``."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Facts of the steps."""

    model: str = ""
    """The program's name for the only model that there is; empty: not known."""
    blocks: tuple[RepeatedBlock, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    sets_to_none: bool | None = None
    """Argument of the program's last ``zero_grad()``; None: it calls none."""
    has_low_precision: bool = False
    """Whether autocast is on in the step, or parameters are in lower precision already."""
    unused_variables: tuple[UnusedVariable, ...] = ()
    queues: tuple[PrefetchQueue, ...] = ()
    """The loaders that were at work together when most was asked for ahead."""
    is_whole: bool = False
    """Whether it is a whole program, which built-in options cannot be put around."""
    recomputes: bool = False
    """Whether the program computes something again in backward already."""
    has_cache: bool = False
    """Whether blocks fill a cache as they run: ``use_cache`` of transformers' models."""
    own_checkpoints: str = ""
    """The method of the models that checkpoints them, with its arguments; empty: they have none."""
    is_compiled: bool = False
    """Whether there is a compiled Keras model, whose train step an estimate traces."""
    is_graph: bool = False
    """Whether the steps are of a graph, whose operations do not come in the program's order."""
    sparse_gradient_bytes: int = 0
    """Bytes of parameters whose gradients are slices of rows: plain SGD writes to these alone."""


def plain_name(name: str) -> str:
    """Return a name as code has it: without the script's module, or what keeps a variable."""
    return name.replace(KEPT, "").replace("__main__.", "")


class Watch(Protocol):
    """Watches the steps of a program."""

    is_last: bool
    """Whether the step is the last one."""

    def on(self) -> AbstractContextManager[None]:
        """Note what steps call."""
        ...

    def facts(self, is_whole: bool) -> StepFacts:
        """Return what is known now."""
        ...
