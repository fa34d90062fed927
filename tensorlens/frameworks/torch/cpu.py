"""Host memory: the counter of torch's CPU allocator or a fallback, and the CPU's ledger."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import Any

import torch

from tensorlens.frameworks.host.census_table import note_foreign, unnamed_block
from tensorlens.frameworks.host.counters import HostCounterChoice
from tensorlens.frameworks.host.ledger import (
    AllocatorFigures,
    cpu_rows,
    host_ledger,
    ledger_of_process,
)
from tensorlens.frameworks.torch.census.graph import maker_of, walk
from tensorlens.frameworks.torch.census.live_tensors import reducer_buckets
from tensorlens.frameworks.torch.census.undisturbed import undisturbed
from tensorlens.frameworks.torch.native import TorchAllocator, install
from tensorlens.heap.objects import without_tuples
from tensorlens.native.build import NativeUnavailable
from tensorlens.records.ledger import Ledger
from tensorlens.records.tensors import TensorTable


def _install_adopting() -> TorchAllocator:
    installed, fresh = install()
    if fresh:
        adopt_living(installed)
    return installed


_choice = HostCounterChoice(_install_adopting)
cpu_counter = _choice.counter
allocator = _choice.allocator
recordable = _choice.recordable
block_sizes = _choice.sizes
fallback_reason = _choice.fallback_reason
notes = _choice.notes


def adopt_living(allocator: TorchAllocator) -> int:
    """Count the CPU storages of live tensors, of gradients, and of tensors that autograd saved.

    Runs no code of the objects that it meets. Returns the number of storages counted.
    """
    with undisturbed() as can_read:
        objects = without_tuples()
        # isinstance() would read the object's __class__
        tensors = [item for item in objects if issubclass(type(item), torch.Tensor)]
        graph = walk(map(maker_of, tensors), can_read)
        tensors += (saved.tensor for saved in graph.saved)
        tensors += graph.leaves.values()
        tensors += (bucket for *_, bucket in reducer_buckets(objects))
        return allocator.adopt(array("Q", map(_address, tensors)))


def watch() -> Callable[[], None]:
    """Count host memory and the lines that allocate it; return a function that ends it.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that is not available.
    """
    counted = allocator()
    if counted is None:
        return lambda: None
    try:
        counted.watch_births()
    except NativeUnavailable:
        # names and sizes do not need births, which are then shown as unknown
        return lambda: None
    return lambda: counted.watch_births(False)


def _address(tensor: Any) -> int:
    try:
        return int(torch._C.TensorBase._cdata.__get__(tensor))
    except Exception:  # a tensor that is still being constructed
        return 0


def cpu_ledger(table: TensorTable) -> Ledger:
    """Return the CPU's ledger; add a note to the rows whose memory torch did not allocate."""
    rows, counter = cpu_rows(table), cpu_counter()
    if not isinstance(counter, TorchAllocator):
        return ledger_of_process(table, rows, counter)
    everything = len(rows) == len(table)
    addresses = table.storage if everything else array("Q", map(table.storage.__getitem__, rows))
    balance = counter.balance(addresses)
    if -1 in balance.sizes:
        foreign = [row for row, size in zip(rows, balance.sizes, strict=True) if size < 0]
        note_foreign(table, foreign, "torch")
    return host_ledger(
        AllocatorFigures(
            source=counter.source,
            precision=counter.precision,
            named=balance.named,
            allocated=balance.allocated,
            blocks=tuple(starmap(partial(unnamed_block, counter), balance.unmatched)),
            block_count=balance.unmatched_count,
        )
    )
