"""Host memory of TensorFlow's tensors and of its runtime, matched to the CPU allocator's blocks."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import starmap

from tensorlens.frameworks.base import Counter
from tensorlens.frameworks.host.allocator import LiveBlocks, NativeAllocator
from tensorlens.frameworks.host.census_table import Births, note_foreign, number_of
from tensorlens.frameworks.host.ledger import (
    AllocatorFigures,
    cpu_rows,
    host_ledger,
    ledger_of_process,
)
from tensorlens.frameworks.tensorflow.census.rows import CensusRow, append
from tensorlens.frameworks.tensorflow.census.tensor_reader import PLAIN, Fact
from tensorlens.frameworks.tensorflow.cpu import CpuCounter
from tensorlens.frameworks.tensorflow.graphs.nodes import Nodes
from tensorlens.frameworks.tensorflow.graphs.titles import Title, title
from tensorlens.records.ledger import Ledger, UnnamedBlock
from tensorlens.records.tensors import TensorTable

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
            calling = allocator.node_name(function) if function >= 0 else None
            made_by = allocator.node_name(node)
            known[key] = title(nodes, made_by, calling, size, by_python=birth >= 0)
        found = known[key]
        if found is None:
            what = f"made by {allocator.node_name(node)}"
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
    balance = allocator.balance(addresses, _LISTED, by_node=True)
    foreign = [row for row, size in zip(rows, balance.sizes, strict=True) if size < 0]
    _note_scalars(table, foreign)
    note_foreign(table, foreign, "TensorFlow")
    named, others = _add_runtime_blocks(table, balance.by_node, allocator, births)
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
            kernels_reason="oneDNN does not count what it keeps for its next call",
        )
    )
    return replace(ledger, explanations={**ledger.explanations, "unnamed": _UNNAMED})


def _note_scalars(table: TensorTable, rows: list[int]) -> None:
    """Say of one number made from a Python number that no allocator was asked."""
    for row in rows:
        is_one = table.storage_nbytes[row] <= ONE and table.shapes[table.shape[row]] == ()
        if is_one and table.storage[row] and table.note[row] < 0:
            table.note[row] = number_of(table.notes, _SCALAR)
