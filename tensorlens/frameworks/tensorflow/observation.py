"""Counts host memory, notes births and gradients, follows functions while someone wants to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorlens import locks
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.native import NativeUnavailable, TensorflowAllocator
from tensorlens.frameworks.tensorflow.wrapping import nothing

_lock = locks.reentrant()
_watchers = 0
_ends: Sequence[Callable[[], None]] = ()


def watch() -> Callable[[], None]:
    """Count host memory from now on and note which line allocates it, until what is returned.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
    """
    global _watchers, _ends
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
            _ends = _follow(allocator)
        _watchers += 1
    ended = False

    def unwatch() -> None:
        nonlocal ended
        global _watchers, _ends
        if ended:
            return
        ended = True
        allocator.watch_births(False)
        with _lock:
            _watchers -= 1
            if _watchers == 0:
                for end in _ends:
                    end()
                _ends = ()

    return unwatch


def _follow(allocator: TensorflowAllocator) -> Sequence[Callable[[], None]]:
    """Have the native part told of calls of graph functions, whose nodes run on other threads.

    And have the gradients noted that tapes give. Returns what ends it.
    """
    from tensorlens.frameworks.tensorflow.attribution.tape_gradients import (
        function_begins,
        function_ends,
        watch_tapes,
    )
    from tensorlens.frameworks.tensorflow.graphs.calls import follow_added_nodes, follow_calls

    def begin(name: str) -> Callable[[], None]:
        call, first = allocator.call(name), function_begins()

        def end() -> None:
            allocator.end(call)
            function_ends(first)

        return end

    graphs = follow_added_nodes(allocator.building, allocator.end)
    return follow_calls(begin), watch_tapes(), graphs
