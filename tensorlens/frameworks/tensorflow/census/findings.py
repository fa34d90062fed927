"""A census of TensorFlow's tensors: finds, reads and names them, and puts them into a table.

No operation is run: no device is initialised, and no tape, profiler or callback of the program
notices. Nothing refers to a tensor at the end.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import starmap

from tensorlens.frameworks.base import CensusRoot, Counter, Findings
from tensorlens.frameworks.host.allocator import Balance, LiveBlocks, NativeAllocator
from tensorlens.frameworks.host.census_table import note_foreign, number_of, unnamed_block
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
    find_objects,
    tabulate,
)
from tensorlens.frameworks.tensorflow.census.tensor_reader import Fact, FactKind, fallback_reason
from tensorlens.frameworks.tensorflow.cpu import TensorflowAllocator
from tensorlens.frameworks.tensorflow.graphs.nodes import Nodes
from tensorlens.frameworks.tensorflow.graphs.runtime_blocks import RuntimeBlock, describe_block
from tensorlens.heap import why_no_names
from tensorlens.interpreter import frozen_objects, paused_collector
from tensorlens.records.ledger import Ledger, Part, UnnamedBlock
from tensorlens.records.names import Names
from tensorlens.records.tensors import TensorTable
from tensorlens.units import rounded_up

UNIT = 256
"""Unit of a chunk's bytes (tsl/framework/bfc_allocator.h, ``kMinAllocationSize``)."""

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
"""Whether the tensors from before the allocator was tapped are counted."""


def census(roots: Sequence[CensusRoot]) -> Findings:
    """Return every live tensor by name, the ledger of each device, and notes for the reader."""
    counter, allocator = cpu.cpu_counter(), cpu.allocator()
    if not counters.is_initialized():
        notes = ("TensorFlow has run no operation: nothing is allocated",)
        return Findings(*_tabulate([], Names(), counter), notes)
    with paused_collector():
        heap = find_objects()
        rows = CensusRows(heap)
        if allocator is not None:
            _adopt(rows, allocator)
        names = NamedRows(heap, rows, roots).names
        del heap
        table, ledgers = _tabulate(rows.rows, names, counter)
    reasons = filter(None, (cpu.fallback_reason(), fallback_reason(), why_no_names()))
    return Findings(table, ledgers, (*_notes(rows), *reasons))


def adopt_all(allocator: TensorflowAllocator) -> int:
    """Count tensors from before the allocator was tapped; return their number.

    Only those that Python knows of are found. Later calls do nothing.
    """
    if _adopted or not counters.is_initialized():
        return 0
    with paused_collector():
        return _adopt(CensusRows(find_objects()), allocator)


def _adopt(rows: CensusRows, allocator: TensorflowAllocator) -> int:
    global _adopted
    if _adopted:
        return 0
    _adopted = True
    sizes = {
        row.fact.address: row.fact.buffer_nbytes
        for row in rows.rows
        if row.fact.owned and row.fact.address and row.device == "cpu"
        # a number may lie in its tensor's own object, which the allocator does not free
        if row.fact.shape or row.fact.buffer_nbytes > _NUMBER_NBYTES
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
"""Element type of memory of which only the size is known."""
_UNNAMED = (
    "blocks that neither a tensor known to Python or to a tape nor a node of a graph accounts for: "
    "whole batches that datasets hold ahead (tensorlens.inputs counts them), what kernels made "
    "before anybody watched, their scratch"
)
_MAX_LISTED = 100
_NUMBER_NBYTES = 16
"""Bytes of the largest number."""
_NUMBER = "a number kept in the tensor's own object, not of TensorFlow's allocator"


def _tabulate(
    rows: Sequence[CensusRow], names: Names, counter: Counter
) -> tuple[TensorTable, Mapping[str, Ledger]]:
    """Return the table of tensors and of the runtime's blocks, and the ledger of each device."""
    if not isinstance(counter, TensorflowAllocator):
        table = tabulate(rows, names, None)
        ledger = ledger_of_process(table, cpu_rows(table), counter)
        return table, {"cpu": ledger, **device_ledgers(table)}
    numbers = [number for number, row in enumerate(rows) if row.device == "cpu"]
    addresses = array("Q", (rows[number].fact.address for number in numbers))
    balance = counter.balance(addresses, _MAX_LISTED)
    blocks, others = _runtime_rows(balance.of_nodes, counter, names)
    table = tabulate([*rows, *blocks], names, counter)
    foreign = [number for number, size in zip(numbers, balance.sizes, strict=True) if size < 0]
    _note_numbers(table, foreign)
    note_foreign(table, foreign, "TensorFlow")
    named = balance.named + sum(block.fact.nbytes for block in blocks)
    unmatched = [*starmap(partial(unnamed_block, counter), balance.unmatched), *others]
    ledger = _cpu_ledger(counter, balance, named, unmatched, len(others))
    return table, {"cpu": ledger, **device_ledgers(table)}


def _runtime_rows(
    blocks: LiveBlocks, allocator: NativeAllocator, names: Names
) -> tuple[list[CensusRow], list[UnnamedBlock]]:
    """Return a row for each block that its node describes, and the other blocks."""
    nodes, text = Nodes(), cache(names.text)

    @cache
    def describe(node: int, function: int, size: int, by_python: bool) -> RuntimeBlock | None:
        name, called = allocator.op_name(node) or "", allocator.op_name(function)
        return describe_block(nodes, name, called, size, by_python=by_python)

    rows, others = [], []
    columns = blocks.address, blocks.size, blocks.birth, blocks.node, blocks.function
    for address, size, birth, node, function in zip(*columns, strict=True):
        found = describe(node, function, size, birth >= 0)
        if found is None:
            what = f"made by {allocator.op_name(node)}"
            others.append(unnamed_block(allocator, address, size, birth, what))
            continue
        name = text(found.base)
        name = name if found.key is None else names.key(name, found.key)
        fact = Fact(FactKind.TENSOR, _UNTYPED, (size,), size, address, size)
        rows.append(CensusRow(fact, "cpu", 0, name, found.role, found.module, found.note))
    return rows, others


def _cpu_ledger(
    counter: TensorflowAllocator,
    balance: Balance,
    named: int,
    unmatched: Sequence[UnnamedBlock],
    of_nodes: int,
) -> Ledger:
    """Return the CPU's ledger; ``of_nodes`` is the number of unmatched blocks made by nodes."""
    ledger = host_ledger(
        AllocatorFigures(
            source=counter.source,
            precision=counter.precision,
            named=named,
            allocated=balance.allocated,
            blocks=tuple(sorted(unmatched, key=lambda block: -block.nbytes)[:_MAX_LISTED]),
            block_count=balance.unmatched_count + of_nodes,
        )
    )
    return replace(ledger, explanations={**ledger.explanations, "unnamed": _UNNAMED})


def _note_numbers(table: TensorTable, rows: Sequence[int]) -> None:
    """Add a note to tensors made of a Python number, which take nothing from the allocator."""
    for row in rows:
        is_number = table.shapes[table.shape[row]] == ()
        is_small = table.storage_nbytes[row] <= _NUMBER_NBYTES
        if is_number and is_small and table.storage[row] and table.note[row] < 0:
            table.note[row] = number_of(table.notes, _NUMBER)
