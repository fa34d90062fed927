"""An input queue: batches held ahead of the step. Sizes are bytes; None is unknown, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tensorlens.records.documents import Document
from tensorlens.records.run import Run, current_run


@dataclass(frozen=True, slots=True)
class QueuePart:
    """One place where input waits."""

    name: str
    """``results``, ``out of order``, ``Prefetch``, ``Shuffle``."""
    where: str
    """``shared memory``, ``this process``, ``worker processes``, ``TensorFlow``."""
    elements: int | None
    """How many wait there now."""
    unit: str
    """Kind of element: ``batch``, ``sample``, or ``element`` where that cannot be told."""
    nbytes: int | None
    max_elements: int | None
    """How many can wait there."""
    max_nbytes: int | None
    rule: str
    """Description and bound, with the source of the rule."""
    ahead: bool = True
    """Whether its elements are batches that the step is still to get, and so in the totals of
    batches. What a cache keeps and single samples are not; their bytes are in the totals."""
    missing: str = ""
    """Why a figure is None."""


@dataclass(frozen=True, slots=True)
class QueueWorker:
    """A process that makes batches."""

    pid: int
    state: str
    """``running``, or ``dead``."""
    rss: int | None = None
    """Resident, pages that it shares included."""
    pss: int | None = None
    """Resident, shared pages counted by their share."""
    uss: int | None = None
    """Its own alone: what would be free without it."""
    shared: int | None = None
    """Resident and shared with other processes: in a forked one, what is not copied so far."""
    copied: int | None = None
    """Part of ``uss`` in memory that a forked process began with: pages that it or its parent has
    written to since the fork. None where it was not forked."""
    missing: str = ""
    """Why a figure is None."""

    @property
    def allocated(self) -> int | None:
        """Part of ``uss`` that is no copy: what a forked process has allocated since the fork."""
        if self.uss is None or self.copied is None:
            return None
        return self.uss - self.copied


@dataclass(frozen=True, slots=True)
class ObjectContainer:
    """A container of Python objects, each of which has a reference count that readers write to."""

    name: str
    """How the dataset leads to it: ``dataset.samples``."""
    kind: str
    """``list``, ``dict``, ``object array``."""
    length: int
    elements: str
    """Type of its elements: ``str``; of a dict, of its values."""
    nbytes: int
    """Bytes of the elements and of what they hold, of each object one page at most: the page of
    its reference count."""
    exact: bool
    """Whether all of them were looked at, not a sample."""


@dataclass(frozen=True, slots=True)
class Queue(Document):
    """Batches held ahead of the step, now and at most.

    A batch is held ahead from when it is complete until the loop is handed it.

    As a table: a row for the whole, one per part, one per worker process.
    """

    SCHEMA: ClassVar[str] = "tensorlens.queue"
    VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = "input queue"
    PRESENTER: ClassVar[str] = "tensorlens.planning.inputs.present"

    name: str
    """Object looked at: ``DataLoader, 2 workers x prefetch 2``."""
    framework: str
    batches: int | None
    """Complete batches that the loop has not got yet."""
    nbytes: int | None
    """Bytes of everything that waits: these batches, samples in buffers, caches."""
    max_batches: int | None
    max_nbytes: int | None
    batch_nbytes: int | None
    """One batch, by the largest that could be seen."""
    parts: tuple[QueuePart, ...]
    rule: str
    """Why it is ``max_batches``, with file and version."""
    workers: tuple[QueueWorker, ...] = ()
    objects: tuple[ObjectContainer, ...] = ()
    """Largest first: containers of the dataset whose reference counts copy forked workers' pages;
    those of 1 MiB or more, three at most."""
    start_method: str = ""
    """How the workers were started: ``fork``, ``spawn``, ``forkserver``."""
    waiting: int | None = None
    """Batches asked for that no worker has begun."""
    in_work: int | None = None
    """Batches that workers are making."""
    missing: dict[str, str] = field(default_factory=dict)
    """Figure to the reason it is None."""
    notes: tuple[str, ...] = ()
    provenance: str = "measured"
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    @property
    def factor(self) -> int | None:
        """How many times a batch the queue takes when full, the one in use included."""
        return None if self.max_batches is None else self.max_batches + 1

    def __repr__(self) -> str:
        return f"<Queue: {self.name}: {self.batches} batches, {self.nbytes} bytes held>"
