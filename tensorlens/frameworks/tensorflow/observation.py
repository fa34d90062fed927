"""Counts host memory, notes births, follows functions while someone wants to know."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.native import NativeUnavailable
from tensorlens.frameworks.tensorflow.wrapping import Shared, nothing


def watch() -> Callable[[], None]:
    """Count host memory from now on and note which line allocates it, until what is returned.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
    """
    allocator = cpu.allocator()
    if allocator is None:
        return nothing
    # imported here: it reads the heap's native part
    from tensorlens.frameworks.tensorflow.census.findings import adopt_all

    adopt_all(allocator)
    try:
        return _watched.add()
    except NativeUnavailable:
        # names and sizes do without; births are shown as unknown
        return nothing


def _begin() -> Callable[[], None]:
    """Note births, and have the native part told of calls of graph functions.

    Their nodes run on other threads.
    """
    from tensorlens.frameworks.tensorflow.graphs.calls import follow_calls

    allocator = cpu.recordable()
    allocator.watch_births()
    unfollow = follow_calls(lambda name: partial(allocator.end, allocator.call(name)))

    def end() -> None:
        allocator.watch_births(False)
        unfollow()

    return end


_watched = Shared(_begin)
