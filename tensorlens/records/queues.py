"""What an input queue holds ahead of the step. Sizes are bytes; None is unknown, never 0."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tensorlens.errors import FileFormatError
from tensorlens.records.checking import check_schema
from tensorlens.records.restoring import restored

if TYPE_CHECKING:
    import pandas

SCHEMA = "tensorlens.queue"
VERSION = 1

FIGURES = ("batches", "nbytes", "max_batches", "max_nbytes", "batch_nbytes")
"""The fields of a :class:`Queue` that are figures."""


@dataclass(frozen=True, slots=True)
class QueuePart:
    """One place where input waits."""

    name: str
    """``results``, ``out of order``, ``future_queue``, ``Prefetch``, ``Shuffle``."""
    where: str
    """``shared memory``, ``this process``, ``worker processes``, ``TensorFlow``."""
    elements: int | None
    """How many wait there now."""
    unit: str
    """What an element is: ``batch``, ``sample``, or ``element`` where that cannot be told."""
    nbytes: int | None
    max_elements: int | None
    """How many can wait there."""
    max_nbytes: int | None
    rule: str
    """What it is and what bounds it, with the source of the rule."""
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
    """Its own alone: what would be free without it. In a forked process, the pages that it has
    written to since the fork and so has copied, and what it allocated: it shares all else."""
    shared: int | None = None
    """Resident and shared with other processes: in a forked one, what is not copied so far."""
    missing: str = ""
    """Why a figure is None."""


@dataclass(frozen=True, slots=True)
class Queue:
    """What is held ahead of the step, now and at most.

    A batch is held ahead from when it is complete until the loop is handed it.
    """

    name: str
    """What was looked at: ``DataLoader, 2 workers x prefetch 2``."""
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

    @property
    def factor(self) -> int | None:
        """How many times a batch the queue takes when full, the one in use included."""
        return None if self.max_batches is None else self.max_batches + 1

    def __repr__(self) -> str:
        return f"<Queue: {self.name}: {self.batches} batches, {self.nbytes} bytes held>"

    def __str__(self) -> str:
        from tensorlens.render import text

        return text.TextRenderer().render(self)

    def _repr_html_(self) -> str:
        from tensorlens.render import html

        return html.fragment(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers (what :meth:`to_json` writes)."""
        return {"schema": SCHEMA, "version": VERSION, **asdict(self)}

    def to_json(self) -> str:
        """Return the record as JSON text; :meth:`from_json` reads it back equal."""
        return json.dumps(self.to_dict(), indent=1)

    def to_csv(self) -> str:
        """Return CSV text: a row for the whole, one per part, one per worker process."""
        from tensorlens.render import table

        return table.CsvRenderer().render(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame: a row for the whole, one per part, one per worker process.

        Raises:
            ImportError: pandas is not installed (``pip install tensorlens[pandas]``).
        """
        from tensorlens.render import table

        return table.to_pandas(self)

    @classmethod
    def from_dict(cls, data: Any) -> Queue:
        """Return the record that :meth:`to_dict` gave.

        Raises:
            FileFormatError: it is something else, newer than this tensorlens, or damaged.
        """
        check_schema(data, SCHEMA, VERSION, "input queue")
        given = {key: value for key, value in data.items() if key not in ("schema", "version")}
        try:
            return restored(cls, given)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FileFormatError(f"damaged input queue: {error}") from None

    @classmethod
    def from_json(cls, content: str) -> Queue:
        """Return the record that :meth:`to_json` wrote.

        Raises:
            FileFormatError: the text is not such a record.
        """
        try:
            data = json.loads(content)
        except (ValueError, RecursionError):
            raise FileFormatError("not a tensorlens input queue: it is not JSON") from None
        return cls.from_dict(data)
