"""Counts host memory, notes births and gradients, follows functions while someone wants to know."""

from __future__ import annotations

from collections.abc import Callable

from tensorlens import locks
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.native import NativeUnavailable, TensorflowAllocator

_lock = locks.reentrant()
_watchers = 0
_unfollow: Callable[[], None] | None = None
_leave_tapes: Callable[[], None] | None = None
_leave_graphs: Callable[[], None] | None = None


def watch() -> Callable[[], None]:
    """Count host memory from now on and note which line allocates it, until what is returned.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
    """
    counter = cpu.cpu_counter()
    if not isinstance(counter, cpu.CpuCounter):
        return _nothing
    allocator = counter.allocator
    # imported here: it reads the heap's native part
    from tensorlens.frameworks.tensorflow.census.findings import adopt_all

    adopt_all(allocator)
    try:
        allocator.watch_births()
    except NativeUnavailable:
        # names and sizes do without; births are shown as unknown
        return _nothing
    _follow(allocator)
    ended = False

    def unwatch() -> None:
        nonlocal ended
        if not ended:
            ended = True
            allocator.watch_births(False)
            _follow_no_more()

    return unwatch


def _follow(allocator: TensorflowAllocator) -> None:
    """Have the native part told of calls of graph functions, whose nodes run on other threads.

    And have the gradients noted that tapes give.
    """
    global _watchers, _unfollow, _leave_tapes, _leave_graphs
    from tensorlens.frameworks.tensorflow.attribution.tape_gradients import (
        function_begins,
        function_ends,
        watch_tapes,
    )
    from tensorlens.frameworks.tensorflow.graphs.calls import follow_calls
    from tensorlens.frameworks.tensorflow.graphs.construction import follow_added_nodes

    def begin(name: str) -> Callable[[], None]:
        call, first = allocator.call(name), function_begins()

        def end() -> None:
            allocator.end(call)
            function_ends(first)

        return end

    with _lock:
        if _watchers == 0:
            _unfollow = follow_calls(begin)
            _leave_tapes = watch_tapes()
            _leave_graphs = follow_added_nodes(allocator.building, allocator.end)
        _watchers += 1


def _follow_no_more() -> None:
    global _watchers, _unfollow, _leave_tapes, _leave_graphs
    with _lock:
        _watchers -= 1
        if _watchers == 0:
            for each in (_unfollow, _leave_tapes, _leave_graphs):
                if each is not None:
                    each()
            _unfollow = _leave_tapes = _leave_graphs = None


def _nothing() -> None:
    """End nothing."""
