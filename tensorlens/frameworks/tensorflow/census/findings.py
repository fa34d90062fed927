"""A census of TensorFlow's tensors: found, read, named, and put in a table.

No operation is run, so that no device is initialised and no tape, profiler or callback of the
program notices; nothing of it refers to a tensor at its end.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import starmap

from tensorlens.frameworks.base import CensusRoot, Counter, Findings
from tensorlens.frameworks.host.allocator import LiveBlocks, NativeAllocator
from tensorlens.frameworks.host.census_table import Births, note_foreign, number_of
from tensorlens.frameworks.host.ledger import (
    AllocatorFigures,
    balanced,
    cpu_rows,
    host_ledger,
    ledger_of_process,
)
from tensorlens.frameworks.tensorflow import counters, cpu
from tensorlens.frameworks.tensorflow.census.named_rows import NamedRows
from tensorlens.frameworks.tensorflow.census.rows import (
    CensusRow,
    CensusRows,
    append,
    look,
    tabulate,
)
from tensorlens.frameworks.tensorflow.census.tensor_reader import (
    PLAIN,
    Fact,
    fallback_reason,
)
from tensorlens.frameworks.tensorflow.cpu import CpuCounter, TensorflowAllocator
from tensorlens.frameworks.tensorflow.graphs.nodes import Nodes
from tensorlens.frameworks.tensorflow.graphs.titles import Title, title
from tensorlens.heap import no_locals
from tensorlens.interpreter import frozen_objects, paused_collector
from tensorlens.records.ledger import Ledger, Part, UnnamedBlock
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
    allocated = counters.allocated(device)
    missing = dict.fromkeys(("reserved", "driver_used", "driver_total"), counters.RESERVED)
    if allocated is None:
        missing["allocated"] = "TensorFlow keeps no figures of this device"
    rounding = Part("named", "rounding", "rounding of chunks", named - exact, _ROUNDING)
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


_adopted = False
"""Whether what was there before the allocator was tapped has been counted in."""


def take(roots: Sequence[CensusRoot]) -> Findings:
    """Return every live tensor by name, the ledger of each device, and notes for the reader."""
    counter = cpu.cpu_counter()
    allocator = cpu.allocator()
    births = Births(allocator)
    if not counters.is_initialized():
        table = TensorTable()
        ledger = {"cpu": cpu_ledger(table, counter, births)}
        return Findings(table, ledger, ("TensorFlow has run no operation: nothing is allocated",))
    with paused_collector():
        heap = look()
        rows = CensusRows(heap)
        if allocator is not None:
            _adopt(rows, allocator)
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
    with paused_collector():
        return _adopt(CensusRows(look()), allocator)


def _adopt(rows: CensusRows, allocator: TensorflowAllocator) -> int:
    global _adopted
    if _adopted:
        return 0
    _adopted = True
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


_UNTYPED = "bytes"
"""Stands for the type of an element where only the size of the memory is known."""


def _add_runtime_blocks(
    table: TensorTable, tagged: LiveBlocks, allocator: NativeAllocator, births: Births
) -> tuple[int, list[UnnamedBlock]]:
    """Add a row for each block whose node tells what it is.

    Returns the bytes of these, and the blocks of which no more is known than the operation that
    made them.
    """
    nodes, named, others = Nodes(), 0, []
    known: dict[tuple[int, int, int, bool], Title | None] = {}
    lines: dict[int, int] = {-1: -1}
    bases: dict[str, int] = {}
    for address, size, birth, node, function in zip(
        *(tagged.address, tagged.size, tagged.birth, tagged.node, tagged.function), strict=True
    ):
        key = node, function, size, birth >= 0
        if key not in known:
            calling = allocator.op_name(function)
            made_by = allocator.op_name(node) or ""
            known[key] = title(nodes, made_by, calling, size, by_python=birth >= 0)
        found = known[key]
        if found is None:
            what = f"made by {allocator.op_name(node)}"
            others.append(births.block(address, size, birth, what))
            continue
        if birth not in lines:
            lines[birth] = len(table.lines)
            table.lines.append(births.line(birth))
        if found.base not in bases:
            bases[found.base] = table.names.text(found.base)
        name = bases[found.base]
        name = name if found.key is None else table.names.key(name, found.key)
        fact = Fact(-1, -1, PLAIN, _UNTYPED, (size,), size, address, size)
        append(table, CensusRow(fact, "cpu", 0, name, found.role, found.module, note=found.note))
        table.born.append(lines[birth])
        table.model_line.append(-1)
        table.alias.append(-1)
        named += size
    return named, others


_UNNAMED = (
    "blocks that neither a tensor known to Python or to a tape nor a node of a graph accounts for: "
    "whole batches that datasets hold ahead (tensorlens.inputs counts them), what kernels made "
    "before anybody watched, their scratch"
)
_LISTED = 100
ONE = 16
"""Bytes of the largest number."""
_SCALAR = "a number kept in the tensor's own object, not of TensorFlow's allocator"


def cpu_ledger(table: TensorTable, counter: Counter, births: Births) -> Ledger:
    """Return the CPU's ledger, and note in ``table`` whose memory is not TensorFlow's."""
    rows = cpu_rows(table)
    if not isinstance(counter, CpuCounter):
        return ledger_of_process(table, rows, counter)
    allocator = counter.allocator
    addresses = array("Q", map(table.storage.__getitem__, rows))
    balance = allocator.balance(addresses, _LISTED)
    foreign = [row for row, size in zip(rows, balance.sizes, strict=True) if size < 0]
    _note_scalars(table, foreign)
    note_foreign(table, foreign, "TensorFlow")
    named, others = _add_runtime_blocks(table, balance.of_nodes, allocator, births)
    unmatched = starmap(births.block, balance.unmatched)
    blocks = sorted((*unmatched, *others), key=lambda block: -block.nbytes)
    ledger = host_ledger(
        AllocatorFigures(
            source=counter.source,
            precision=counter.precision,
            named=balance.named + named,
            allocated=balance.allocated,
            blocks=tuple(blocks[:_LISTED]),
            block_count=balance.unmatched_count + len(others),
        )
    )
    return replace(ledger, explanations={**ledger.explanations, "unnamed": _UNNAMED})


def _note_scalars(table: TensorTable, rows: list[int]) -> None:
    """Say of one number made from a Python number that no allocator was asked."""
    for row in rows:
        is_one = table.storage_nbytes[row] <= ONE and table.shapes[table.shape[row]] == ()
        if is_one and table.storage[row] and table.note[row] < 0:
            table.note[row] = number_of(table.notes, _SCALAR)
