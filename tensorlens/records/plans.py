"""What batches of an input take by batch size and resolution, alone and with a queue of them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tensorlens.errors import FileFormatError
from tensorlens.records.checking import check_schema
from tensorlens.records.restoring import restored

if TYPE_CHECKING:
    import pandas

SCHEMA = "tensorlens.plan"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A table of bytes: batch sizes down, shapes of one sample across."""

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
        """Return the plan as JSON text; :meth:`from_json` reads it back equal."""
        return json.dumps(self.to_dict(), indent=1)

    def to_csv(self) -> str:
        """Return CSV text: one row per batch size and shape."""
        from tensorlens.render import table

        return table.CsvRenderer().render(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame: one row per batch size and shape.

        Raises:
            ImportError: pandas is not installed (``pip install tensorlens[pandas]``).
        """
        from tensorlens.render import table

        return table.to_pandas(self)

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Return the plan that :meth:`to_dict` gave.

        Raises:
            FileFormatError: it is something else, newer than this tensorlens, or damaged.
        """
        check_schema(data, SCHEMA, VERSION, "plan")
        given = {key: value for key, value in data.items() if key not in ("schema", "version")}
        try:
            return restored(cls, given)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FileFormatError(f"damaged plan: {error}") from None

    @classmethod
    def from_json(cls, content: str) -> Plan:
        """Return the plan that :meth:`to_json` wrote.

        Raises:
            FileFormatError: the text is not such a plan.
        """
        try:
            data = json.loads(content)
        except (ValueError, RecursionError):
            raise FileFormatError("not a tensorlens plan: it is not JSON") from None
        return cls.from_dict(data)
