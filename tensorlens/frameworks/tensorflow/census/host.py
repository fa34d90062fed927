"""Host memory of TensorFlow's tensors, matched to the CPU allocator's blocks."""

from __future__ import annotations

from array import array
from dataclasses import replace

from tensorlens.frameworks.base import Counter
from tensorlens.frameworks.census.foreign_memory import note_foreign
from tensorlens.frameworks.census.host_ledger import Handed, host_ledger
from tensorlens.frameworks.census.table import Births
from tensorlens.frameworks.tensorflow.census.runtime import RuntimeBlocks
from tensorlens.frameworks.tensorflow.cpu import CpuCounter
from tensorlens.records.ledger import Block, Ledger
from tensorlens.records.tensors import TensorTable

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
    rows = _cpu_rows(table)
    if not isinstance(counter, CpuCounter):
        named = sum(table.storage_nbytes[row] for row in rows if table.alias[row] < 0)
        reason = f"{counter.source} does not count tensors alone"
        return host_ledger(Handed(counter.source, counter.precision, named, reason=reason))
    allocator = counter.allocator
    addresses = array("Q", map(table.storage.__getitem__, rows))
    balance = allocator.balance(addresses, _LISTED, by_node=True)
    foreign = [row for row, size in zip(rows, balance.sizes, strict=True) if size < 0]
    _note_scalars(table, foreign)
    note_foreign(table, foreign, "TensorFlow")
    runtime = RuntimeBlocks(balance.tagged, allocator, births)
    runtime.add_to(table)
    unmatched = [
        Block(address, size, births.line(birth) if birth >= 0 else None)
        for address, size, birth in balance.unmatched
    ]
    blocks = sorted((*unmatched, *runtime.others), key=lambda block: -block.nbytes)
    ledger = host_ledger(
        Handed(
            source=counter.source,
            precision=counter.precision,
            named=balance.named + runtime.named,
            allocated=balance.allocated,
            blocks=tuple(blocks[:_LISTED]),
            block_count=balance.unmatched_count + len(runtime.others),
            kernels_reason="oneDNN does not count what it keeps for its next call",
        )
    )
    return replace(ledger, explanations={**ledger.explanations, "unnamed": _UNNAMED})


def _cpu_rows(table: TensorTable) -> list[int]:
    cpu = table.devices.index("cpu") if "cpu" in table.devices else -1
    return [row for row, device in enumerate(table.device) if device == cpu]


def _note_scalars(table: TensorTable, rows: list[int]) -> None:
    """Say of one number made from a Python number that no allocator was asked."""
    for row in rows:
        is_one = table.storage_nbytes[row] <= ONE and table.shapes[table.shape[row]] == ()
        if is_one and table.storage[row] and table.note[row] < 0:
            table.note[row] = _number(table.notes, _SCALAR)


def _number(texts: list[str], text: str) -> int:
    if text not in texts:
        texts.append(text)
    return texts.index(text)
