"""A plan of an input: bytes of batches by batch size and resolution, alone and queued."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from tensorlens.records.documents import Document
from tensorlens.records.run import Run, current_run

SCHEMA = "tensorlens.plan"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Plan(Document):
    """A table of bytes: batch sizes down, shapes of one sample across.

    As a table: one row per batch size and shape.
    """

    SCHEMA: ClassVar[str] = SCHEMA
    VERSION: ClassVar[int] = VERSION
    KIND: ClassVar[str] = "plan"
    PRESENTER: ClassVar[str] = "tensorlens.planning.inputs.present_plan"

    shapes: tuple[tuple[int, ...], ...]
    batch_sizes: tuple[int, ...]
    dtype: str
    itemsize: int
    """Bytes of one number."""
    loader: str
    """Whose queue: ``torch``, ``keras``, ``tf.data``."""
    workers: int
    prefetch: int
    """``prefetch_factor``, ``max_queue_size``, or the argument of ``prefetch()``."""
    ahead: int
    """Batches that the queue holds when it is full."""
    rule: str
    """Why it is ``ahead``, with file and version."""
    shape: tuple[int, ...] | None = None
    """The one shape that was asked for; None where several were."""
    batch: int | None = None
    """The one batch size that was asked for; None where several were."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    @property
    def factor(self) -> int:
        """How many times a batch is held: those ahead, and the one that the step uses."""
        return self.ahead + 1

    @property
    def nbytes(self) -> int | None:
        """Bytes of one batch of the shape and size asked for; None where several were."""
        if self.shape is None or self.batch is None:
            return None
        return self.batch_nbytes(self.batch, self.shape)

    @property
    def held(self) -> int | None:
        """Bytes of the queue when full and of the batch in use; None as for ``nbytes``."""
        return None if self.nbytes is None else self.nbytes * self.factor

    def batch_nbytes(self, batch: int, shape: tuple[int, ...]) -> int:
        """Return the bytes of one batch: ``batch x extents x bytes of a number``."""
        return batch * math.prod(shape) * self.itemsize

    def rows(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the table: each batch size with the bytes of one batch of each shape."""
        return tuple(
            (batch, tuple(self.batch_nbytes(batch, shape) for shape in self.shapes))
            for batch in self.batch_sizes
        )
