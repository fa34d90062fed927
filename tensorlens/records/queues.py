"""An input queue: batches held ahead of the step. Sizes are bytes; None is unknown, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tensorlens.records.documents import Document
from tensorlens.records.run import Run, current_run


@dataclass(frozen=True, slots=True)
class QueuePart:
    """One place where input waits, such as a buffer."""

    name: str
    """``results``, ``out of order``, ``Prefetch``, ``Shuffle``."""
    where: str
    """``shared memory``, ``this process``, ``worker processes``, ``TensorFlow``."""
    elements: int | None
    """Number of elements that wait there now."""
    unit: str
    """Kind of element: ``batch``, ``sample``, or ``element`` if unknown."""
    nbytes: int | None
    max_elements: int | None
    """Greatest number that can wait there."""
    max_nbytes: int | None
    rule: str
    """Description and bound, with the source of the rule."""
    ahead: bool = True
    """Whether its elements are batches that the loop will get, which the totals of batches count.
    Elements of caches and single samples are not; the totals have their bytes."""
    missing: str = ""
    """Why a figure is None."""


@dataclass(frozen=True, slots=True)
class QueueWorker:
    """A process that makes batches."""

    pid: int
    state: str
    """``running`` or ``dead``."""
    rss: int | None = None
    """Resident bytes, shared pages included."""
    pss: int | None = None
    """Resident bytes, each shared page divided among its processes."""
    uss: int | None = None
    """Bytes of its own pages: these would be free without it."""
    shared: int | None = None
    """Resident bytes shared with other processes; in a forked process, those not yet copied."""
    copied: int | None = None
    """Part of ``uss`` that is copied from the parent: pages that one of them has written to since
    the fork. None if it was not forked."""
    missing: str = ""
    """Why a figure is None."""

    @property
    def allocated(self) -> int | None:
        """Part of ``uss`` that is not copied: allocated by the worker since the fork."""
        if self.uss is None or self.copied is None:
            return None
        return self.uss - self.copied


@dataclass(frozen=True, slots=True)
class ObjectContainer:
    """A container of Python objects, whose reference counts are written when they are read."""

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
    """Complete batches that the loop has not taken yet."""
    nbytes: int | None
    """Bytes of all that waits: these batches, samples in buffers, caches."""
    max_batches: int | None
    max_nbytes: int | None
    batch_nbytes: int | None
    """Bytes of the largest batch that was seen."""
    parts: tuple[QueuePart, ...]
    rule: str
    """Reason for ``max_batches``, with file and version."""
    workers: tuple[QueueWorker, ...] = ()
    objects: tuple[ObjectContainer, ...] = ()
    """The three largest containers of the dataset of 1 MiB or more whose reference counts make
    forked workers copy pages, largest first."""
    start_method: str = ""
    """Start method of the workers: ``fork``, ``spawn``, ``forkserver``."""
    waiting: int | None = None
    """Requested batches that no worker has begun."""
    in_work: int | None = None
    """Batches that workers are making."""
    missing: dict[str, str] = field(default_factory=dict)
    """Figure to the reason it is None."""
    notes: tuple[str, ...] = ()
    provenance: str = "measured"
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    @property
    def factor(self) -> int | None:
        """Batches in memory when the queue is full, including the one in use."""
        return None if self.max_batches is None else self.max_batches + 1

    def __repr__(self) -> str:
        return f"<Queue: {self.name}: {self.batches} batches, {self.nbytes} bytes held>"
