"""A census of TensorFlow's tensors: found, read, named, and put in a table.

No operation is run, so that no device is initialised and no tape, profiler or callback of the
program notices; nothing of it refers to a tensor at its end.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from tensorlens.frameworks.base import CensusRoot, Findings
from tensorlens.frameworks.host.census_table import Births
from tensorlens.frameworks.host.ledger import balanced
from tensorlens.frameworks.tensorflow import counters, cpu
from tensorlens.frameworks.tensorflow.census.host import ONE, cpu_ledger
from tensorlens.frameworks.tensorflow.census.named_rows import NamedRows
from tensorlens.frameworks.tensorflow.census.rows import CensusRows, look, tabulate
from tensorlens.frameworks.tensorflow.census.tensor_reader import fallback_reason, reader
from tensorlens.frameworks.tensorflow.native import TensorflowAllocator
from tensorlens.heap import no_locals
from tensorlens.interpreter import frozen_objects, paused_collector
from tensorlens.records.ledger import Ledger, Term
from tensorlens.records.tensors import TensorTable
from tensorlens.units import rounded_up

UNIT = 256
"""Bytes that a chunk is a multiple of (tsl/framework/bfc_allocator.h, ``kMinAllocationSize``)."""

_EXPLANATIONS = {
    "allocated": "chunks that TensorFlow's allocator has handed out, as get_memory_info tells",
    "named": f"the buffers of the tensors listed, each once, rounded up to {UNIT} B",
    "unnamed": "chunks that no known tensor accounts for, and chunks that were not split",
}
_ROUNDING = f"what a chunk has beyond its tensor: chunks are multiples of {UNIT} B"


def device_ledgers(table: TensorTable) -> Mapping[str, Ledger]:
    """Return the ledger of each accelerator in use."""
    used = set(counters.used_devices()) | (set(table.devices) - {"cpu"})
    return {device: _ledger(device, table) for device in sorted(used)}


def _ledger(device: str, table: TensorTable) -> Ledger:
    number = table.devices.index(device) if device in table.devices else -1
    sizes = [table.storage_nbytes[row] for row in table.counted() if table.device[row] == number]
    exact = sum(sizes)
    named = sum(rounded_up(size, UNIT) for size in sizes)
    info = counters.memory_info(counters.short_name(device))
    allocated = None if info is None else info[0]
    missing = dict.fromkeys(("reserved", "driver_used", "driver_total"), counters.RESERVED)
    if allocated is None:
        missing["allocated"] = "TensorFlow keeps no figures of this device"
    rounding = Term("named", "rounding", "rounding of chunks", named - exact, _ROUNDING)
    ledger = Ledger(
        device,
        counters.DeviceCounter.source,
        counters.DeviceCounter.precision,
        named=named,
        allocated=allocated,
        missing=missing,
        parts=(rounding,) if sizes else (),
        explanations=_EXPLANATIONS,
    )
    return balanced(ledger)


_adopted: list[bool] = []
"""Not empty once what was there before the allocator was tapped has been counted in."""


def take(roots: Sequence[CensusRoot]) -> Findings:
    """Return every live tensor by name, the ledger of each device, and notes for the reader."""
    counter = cpu.cpu_counter()
    allocator = cpu.allocator()
    births = Births(allocator)
    if not counters.is_initialized():
        table = TensorTable()
        ledger = {"cpu": cpu_ledger(table, counter, births)}
        return Findings(table, ledger, ("TensorFlow has run no operation: nothing is allocated",))
    tensors = reader()
    with paused_collector():
        heap = look()
        rows = CensusRows(heap, tensors)
        if allocator is not None and not _adopted:
            _adopt(rows, allocator)
            _adopted.append(True)
        names = NamedRows(heap, rows, roots).names
        del heap
        table = tabulate(rows.all, names, births)
        ledger = {"cpu": cpu_ledger(table, counter, births), **device_ledgers(table)}
    reasons = filter(None, (cpu.fallback_reason(), fallback_reason(), no_locals()))
    return Findings(table, ledger, (*_notes(rows), *reasons))


def adopt_all(allocator: TensorflowAllocator) -> int:
    """Count in what was allocated before the allocator was tapped; return how many blocks.

    Only what belongs to tensors that Python knows of, and only the first time.
    """
    if _adopted or not counters.is_initialized():
        return 0
    _adopted.append(True)
    with paused_collector():
        rows = CensusRows(look(), reader())
    return _adopt(rows, allocator)


def _adopt(rows: CensusRows, allocator: TensorflowAllocator) -> int:
    sizes = {
        row.fact.address: row.fact.buffer_nbytes
        for row in rows.all
        if row.fact.owned and row.fact.address and row.device == "cpu"
        # a number may lie in its tensor's own object, which the allocator does not free
        if row.fact.shape or row.fact.buffer_nbytes > ONE
    }
    return allocator.adopt(array("Q", sizes), array("q", sizes.values()))


def _notes(rows: CensusRows) -> list[str]:
    notes = []
    if rows.unread:
        notes.append(
            f"{rows.unread} tensors could not be read: they are being computed, on another "
            "machine, or spread over devices"
        )
    frozen = frozen_objects()
    if frozen:
        notes.append(
            f"gc.freeze() hides {frozen} objects: tensors among them are not listed, and their "
            "memory is unnamed"
        )
    return notes
