"""Host memory of torch's tensors: matched to the CPU allocator's blocks, or told apart."""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable
from itertools import starmap
from pathlib import Path
from typing import cast

import torch

from tensorlens.frameworks.base import Counter
from tensorlens.frameworks.host.census_table import Births, note_foreign
from tensorlens.frameworks.host.ledger import (
    AllocatorFigures,
    cpu_rows,
    host_ledger,
    ledger_of_process,
)
from tensorlens.frameworks.torch.cpu import CpuCounter
from tensorlens.records.ledger import Ledger
from tensorlens.records.tensors import TensorTable


def kernel_caches() -> tuple[int | None, str]:
    """Return the bytes that MKL keeps in buffers, or None, and the reason it is not known.

    oneDNN counts neither its primitives nor the weights it packed.
    """
    function = _mkl_mem_stat()
    if function is None:
        return None, "this torch's MKL, if it has one, does not tell (mkl_mem_stat)"
    buffers = ctypes.c_int()
    return function(ctypes.addressof(buffers)), ""


@functools.cache
def _mkl_mem_stat() -> Callable[[int], int] | None:
    """Return ``mkl_mem_stat`` of MKL's reference, as it is called where torch is linked to it."""
    try:
        # it is loaded: this finds it, and what it is linked to
        path = Path(torch.__file__).resolve().parent / "lib" / "libtorch_cpu.so"
        function = ctypes.PyDLL(str(path)).mkl_serv_mem_stat
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = (ctypes.c_void_p,), ctypes.c_int64
    return cast("Callable[[int], int]", function)


_MINUS_ONE = array("q", [-1]).tobytes()


def cpu_ledger(table: TensorTable, counter: Counter, births: Births) -> Ledger:
    """Return the CPU's ledger, and note in ``table`` whose memory torch did not allocate."""
    rows = cpu_rows(table)
    if not isinstance(counter, CpuCounter):
        return ledger_of_process(table, rows, counter)
    everything = len(rows) == len(table)
    addresses = table.storage if everything else array("Q", map(table.storage.__getitem__, rows))
    balance = counter.allocator.balance(addresses)
    # sizes are small, so that no two of them look like that
    if _MINUS_ONE in balance.sizes.tobytes():
        foreign = [row for row, size in zip(rows, balance.sizes, strict=True) if size < 0]
        note_foreign(table, foreign, "torch")
    kernels, reason = kernel_caches()
    return host_ledger(
        AllocatorFigures(
            source=counter.source,
            precision=counter.precision,
            named=balance.named,
            allocated=balance.allocated,
            blocks=tuple(starmap(births.block, balance.unmatched)),
            block_count=balance.unmatched_count,
            kernels=kernels,
            kernels_reason=reason,
        )
    )
