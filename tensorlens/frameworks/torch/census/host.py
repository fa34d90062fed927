"""Host memory of torch's tensors: matched to the CPU allocator's blocks, or told apart."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from tensorlens.frameworks.base import Counter
from tensorlens.frameworks.census_table import Births
from tensorlens.frameworks.foreign_memory import note_foreign
from tensorlens.frameworks.host_ledger import Handed, host_ledger
from tensorlens.frameworks.torch.census.kernel_caches import kernel_caches
from tensorlens.frameworks.torch.cpu import CpuCounter
from tensorlens.records.events import WRAPPERS
from tensorlens.records.ledger import Block, Ledger
from tensorlens.records.tensors import ROLES, TensorTable

_BUCKET = "what the wrapper takes to add up the gradients of all processes"
_MINUS_ONE = array("q", [-1]).tobytes()


def cpu_ledger(table: TensorTable, counter: Counter, births: Births) -> Ledger:
    """Return the CPU's ledger, and note in ``table`` whose memory torch did not allocate."""
    rows = _cpu_rows(table)
    if not isinstance(counter, CpuCounter):
        named = sum(table.storage_nbytes[row] for row in rows if table.alias[row] < 0)
        reason = f"{counter.source} does not count tensors alone"
        return host_ledger(Handed(counter.source, counter.precision, named, reason=reason))
    everything = len(rows) == len(table)
    addresses = table.storage if everything else array("Q", map(table.storage.__getitem__, rows))
    balance = counter.allocator.balance(addresses)
    # sizes are small, so that no two of them look like that
    if _MINUS_ONE in balance.sizes.tobytes():
        foreign = [row for row, size in zip(rows, balance.sizes, strict=True) if size < 0]
        note_foreign(table, foreign, "torch")
    buckets = _add_buckets(table, balance.unmatched, births)
    blocks = tuple(
        Block(address, size, births.line(birth) if birth >= 0 else None)
        for address, size, birth in balance.unmatched
        if address not in buckets
    )
    kernels, reason = kernel_caches()
    return host_ledger(
        Handed(
            source=counter.source,
            precision=counter.precision,
            named=balance.named + sum(buckets.values()),
            allocated=balance.allocated,
            blocks=blocks,
            block_count=balance.unmatched_count - len(buckets),
            kernels=kernels,
            kernels_reason=reason,
        )
    )


def _add_buckets(
    table: TensorTable, blocks: Sequence[tuple[int, int, int]], births: Births
) -> dict[int, int]:
    """Add a row for each block that a data parallel wrapper took; return address to size."""
    found: dict[int, int] = {}
    _, models = births.numbers(array("Q", [address for address, *_ in blocks]))
    lines = {number: births.line(number) for number in set(models) - {-1}}
    for (address, size, birth), model in zip(blocks, models, strict=True):
        if model < 0 or lines[model].function not in WRAPPERS:
            continue
        found[address] = size
        table.lines += [births.line(birth), lines[model]]
        table.nbytes.append(size)
        table.storage.append(address)
        table.storage_nbytes.append(size)
        table.role.append(ROLES.index("gradient"))
        table.device.append(_number(table.devices, "cpu"))
        table.dtype.append(_number(table.dtypes, "bytes"))
        table.shape.append(_number(table.shapes, (size,)))
        table.name.append(table.names.text("DistributedDataParallel: gradient bucket"))
        table.note.append(_number(table.notes, _BUCKET))
        table.born.append(len(table.lines) - 2)
        table.model_line.append(len(table.lines) - 1)
        table.offset.append(0)
        for column in (table.stride, table.alias, table.held_by, table.module):
            column.append(-1)
    return found


def _number(items: list[Any], item: Any) -> int:
    # they are few
    if item not in items:
        items.append(item)
    return items.index(item)


def _cpu_rows(table: TensorTable) -> range | list[int]:
    cpu = table.devices.index("cpu") if "cpu" in table.devices else -1
    if cpu >= 0 and len(table.devices) == 1:
        return range(len(table))
    return [row for row, device in enumerate(table.device) if device == cpu]
