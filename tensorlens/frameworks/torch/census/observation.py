"""Counts host memory and notes births while someone wants to know."""

from __future__ import annotations

from collections.abc import Callable

from tensorlens import locks
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.census.findings import adopt_all
from tensorlens.frameworks.torch.native import NativeUnavailable

_lock = locks.reentrant()
_adopted = False


def watch() -> Callable[[], None]:
    """Count host memory from now on and note which line allocates it, until what is returned.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
    """
    global _adopted
    counter = cpu.cpu_counter()
    if not isinstance(counter, cpu.CpuCounter):
        return _nothing
    allocator = counter.allocator
    with _lock:
        if not _adopted:
            adopt_all(allocator)
            _adopted = True
    try:
        allocator.watch_births()
    except NativeUnavailable:
        # names and sizes do without; births are shown as unknown
        return _nothing
    return lambda: allocator.watch_births(False)


def _nothing() -> None:
    """End nothing."""
