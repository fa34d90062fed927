"""A snapshot of memory at one moment: the tensors by name, and a ledger for each device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tensorlens.records.documents import Document
from tensorlens.records.ledger import Ledger
from tensorlens.records.run import Run, current_run, run_over
from tensorlens.records.tensors import TensorTable, merge_tables

if TYPE_CHECKING:
    from tensorlens.tensors.difference import Difference


@dataclass(frozen=True, slots=True)
class Snapshot(Document):
    """Every live tensor by name and a ledger that balances; keeps no tensor alive.

    Prints itself as text and, in a notebook, as HTML. ``after - before`` is a
    :class:`~tensorlens.tensors.difference.Difference`. As a table: one row per tensor.
    """

    SCHEMA: ClassVar[str] = "tensorlens.snapshot"
    VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = "snapshot"
    PRESENTER: ClassVar[str] = "tensorlens.tensors.present"
    INDENT: ClassVar[int | None] = None

    tensors: TensorTable
    ledger: Mapping[str, Ledger]
    """Device name (``cpu``, ``cuda:0``) to its ledger."""
    provenance: str = "measured"
    process: str | None = None
    """Set if several processes were merged, or if it is not the main process."""
    notes: tuple[str, ...] = ()
    """Notes for the reader: tensors left out, a fallback in use."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    def __sub__(self, before: Snapshot) -> Difference:
        """Return what changed from ``before`` to this one."""
        if not isinstance(before, Snapshot):
            return NotImplemented
        from tensorlens.tensors.difference import difference

        return difference(before, self)

    @classmethod
    def merged(cls, parts: Mapping[str, Snapshot]) -> Snapshot:
        """Merge several snapshots, such as those of the ranks of a job.

        Each part's label is put before its devices (``rank0/cuda:0``), so that tensors and ledgers
        stay separate and totals are sums over the parts. A merged snapshot can be merged again.
        """
        provenances = dict.fromkeys(part.provenance for part in parts.values())
        return cls(
            tensors=merge_tables((f"{label}/", part.tensors) for label, part in parts.items()),
            ledger={
                f"{label}/{device}": replace(ledger, device=f"{label}/{device}")
                for label, part in parts.items()
                for device, ledger in part.ledger.items()
            },
            provenance=", ".join(provenances) or "measured",
            process=f"merged: {', '.join(parts)}",
            notes=tuple(f"{label}: {note}" for label, part in parts.items() for note in part.notes),
            run=run_over(parts.values()),
        )

    def _fields(self) -> dict[str, Any]:
        return {
            "provenance": self.provenance,
            "process": self.process,
            "notes": list(self.notes),
            "run": self.run and asdict(self.run),
            "ledger": {device: asdict(ledger) for device, ledger in self.ledger.items()},
            "tensors": self.tensors.to_dict(),
        }

    @classmethod
    def _ready(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {"tensors": TensorTable.from_dict(data["tensors"])}
