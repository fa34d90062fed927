"""What was in memory at one moment: the tensors by name, and a ledger for each device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tensorlens.errors import FileFormatError
from tensorlens.records.ledger import Block, Ledger, Term
from tensorlens.records.tensors import SourceLine, TensorTable

if TYPE_CHECKING:
    import pandas

    from tensorlens.records.differences import Difference

SCHEMA = "tensorlens.snapshot"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every live tensor by name and a ledger that balances; holds no tensor alive.

    Prints itself as text and, in a notebook, as HTML. ``after - before`` is a
    :class:`~tensorlens.records.differences.Difference`.
    """

    tensors: TensorTable
    ledger: Mapping[str, Ledger]
    """Device name (``cpu``, ``cuda:0``) to its ledger."""
    provenance: str = "measured"
    process: str | None = None
    """Set when several processes were merged, or it is not the main one."""
    notes: tuple[str, ...] = ()
    """What a reader must know: tensors left out, a fallback in use."""

    def __str__(self) -> str:
        from tensorlens.render import text

        return text.TextRenderer().render(self)

    def _repr_html_(self) -> str:
        from tensorlens.render import html

        return html.fragment(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __sub__(self, before: Snapshot) -> Difference:
        """Return what changed from ``before`` to this one."""
        if not isinstance(before, Snapshot):
            return NotImplemented
        from tensorlens.records.differences import difference

        return difference(before, self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and integers (what :meth:`to_json` writes)."""
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "provenance": self.provenance,
            "process": self.process,
            "notes": list(self.notes),
            "ledger": {device: asdict(ledger) for device, ledger in self.ledger.items()},
            "tensors": self.tensors.to_dict(),
        }

    def to_json(self) -> str:
        """Return the snapshot as JSON text; :meth:`from_json` reads it back equal."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    def to_csv(self) -> str:
        """Return CSV text: one row per tensor, sizes in bytes."""
        from tensorlens.render import table

        return table.CsvRenderer().render(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame: one row per tensor, sizes in bytes.

        Raises:
            ImportError: pandas is not installed (``pip install tensorlens[pandas]``).
        """
        from tensorlens.render import table

        return table.to_pandas(self)

    @classmethod
    def from_dict(cls, data: Any) -> Snapshot:
        """Return the snapshot that :meth:`to_dict` gave.

        Raises:
            FileFormatError: it is something else, newer than this tensorlens, or damaged.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise FileFormatError("not a tensorlens snapshot")
        if data.get("version") != VERSION:
            raise FileFormatError(
                f"snapshot of version {data.get('version')!r}; this tensorlens reads {VERSION}"
            )
        try:
            return cls(
                tensors=TensorTable.from_dict(data["tensors"]),
                ledger={device: _ledger(item) for device, item in data["ledger"].items()},
                provenance=data["provenance"],
                process=data["process"],
                notes=tuple(data["notes"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise FileFormatError(f"damaged snapshot: {error}") from None

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """Return the snapshot that :meth:`to_json` wrote.

        Raises:
            FileFormatError: the text is not such a snapshot.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise FileFormatError("not a tensorlens snapshot: it is not JSON") from None
        return cls.from_dict(data)


def _ledger(data: dict[str, Any]) -> Ledger:
    return Ledger(
        **{
            **data,
            "parts": tuple(Term(**item) for item in data["parts"]),
            "blocks": tuple(_block(item) for item in data["blocks"]),
        }
    )


def _block(data: dict[str, Any]) -> Block:
    born = data["born"]
    return Block(
        **{
            **data,
            "born": None if born is None else SourceLine(**born),
            "stack": tuple(SourceLine(**item) for item in data["stack"]),
        }
    )


@dataclass(frozen=True, slots=True)
class View:
    """Which of a snapshot's tensors a report shows, and how fully."""

    top: int | None = None
    """The largest so many rows of each device."""
    min_size: int = 0
    """Rows of at least so many bytes."""
    roles: tuple[str, ...] = ()
    """Only these roles; empty for all."""
    devices: tuple[str, ...] = ()
    """Only these devices; empty for all."""
    verbose: bool = False
    """Also aliases, strides, storages, holders and births."""
    explain: bool = False
    """Also one line for each term of the ledger."""


FULL = View()
