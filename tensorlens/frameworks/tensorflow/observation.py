"""Counts host memory, notes births, follows functions while someone wants to know."""

from __future__ import annotations

from collections.abc import Callable

from tensorlens import locks
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.native import NativeUnavailable, TensorflowAllocator
from tensorlens.frameworks.tensorflow.wrapping import nothing

_lock = locks.reentrant()
_watchers = 0
_end: Callable[[], None] = nothing


def watch() -> Callable[[], None]:
    """Count host memory from now on and note which line allocates it, until what is returned.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
    """
    global _watchers, _end
    counter = cpu.cpu_counter()
    if not isinstance(counter, cpu.CpuCounter):
        return nothing
    allocator = counter.allocator
    # imported here: it reads the heap's native part
    from tensorlens.frameworks.tensorflow.census.findings import adopt_all

    adopt_all(allocator)
    try:
        allocator.watch_births()
    except NativeUnavailable:
        # names and sizes do without; births are shown as unknown
        return nothing
    with _lock:
        if _watchers == 0:
            _end = _follow(allocator)
        _watchers += 1
    ended = False

    def unwatch() -> None:
        nonlocal ended
        global _watchers
        if ended:
            return
        ended = True
        allocator.watch_births(False)
        with _lock:
            _watchers -= 1
            if _watchers == 0:
                _end()

    return unwatch


def _follow(allocator: TensorflowAllocator) -> Callable[[], None]:
    """Have the native part told of calls of graph functions, whose nodes run on other threads.

    Returns what ends it.
    """
    from tensorlens.frameworks.tensorflow.graphs.calls import follow_calls

    def begin(name: str) -> Callable[[], None]:
        call = allocator.call(name)

        def end() -> None:
            allocator.end(call)

        return end

    return follow_calls(begin)
