"""A census of JAX's arrays, after which nothing of it refers to any of them.

No operation is run and no device is made.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

from tensorlens import collector
from tensorlens.frameworks.base import Findings, Root
from tensorlens.frameworks.found_rows import tabulate
from tensorlens.frameworks.heap import no_locals
from tensorlens.frameworks.jax import programs
from tensorlens.frameworks.jax.buffers import Reader
from tensorlens.frameworks.jax.census.births import TracebackBirths
from tensorlens.frameworks.jax.census.find import look
from tensorlens.frameworks.jax.census.ledgers import ledgers
from tensorlens.frameworks.jax.census.named import NamedRows
from tensorlens.frameworks.jax.census.rows import Rows
from tensorlens.frameworks.jax.runtime import clients
from tensorlens.records.tensors import TensorTable


def take(roots: Sequence[Root]) -> Findings:
    """Return every live array by name, the ledger of each device, and notes for the reader."""
    if not clients():
        empty = TensorTable()
        note = "JAX has made no device so far: there are no arrays"
        return Findings(empty, ledgers(empty), (note,))
    with collector.paused():
        heap = look([root.item for root in roots])
        rows = Rows(heap, Reader())
        names = NamedRows(heap, rows, roots).names
        told = rows.told()
        births = TracebackBirths((row.fact, heap.arrays[row.fact.array]) for row in told)
        del heap
        table = tabulate(told, names, births)
        ledger = ledgers(table)
    reasons = filter(None, (no_locals(), programs.note()))
    return Findings(table, ledger, (*_notes(rows), *reasons))


def _notes(rows: Rows) -> list[str]:
    notes = []
    if rows.unread:
        notes.append(f"{rows.unread} arrays could not be read: their computation failed")
    frozen = gc.get_freeze_count()
    if frozen:
        notes.append(
            f"gc.freeze() hides {frozen} objects: arrays that they hold are shown, and not by name"
        )
    return notes
