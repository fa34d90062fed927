"""Tells which graph an operation is being added to: allocations then are the graph's own.

The values of constants that shapes are inferred from are kept with the graph
(``core/common_runtime/shape_refiner.cc``, TensorFlow 2.21).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tensorflow.python.framework.func_graph import FuncGraph

from tensorlens import locks

_METHOD = "_create_op_internal"
_lock = locks.reentrant()


def follow_added_nodes(
    begin: Callable[[str], object], end: Callable[[Any], object]
) -> Callable[[], None]:
    """Call ``begin`` with a function graph's name when it is added to, ``end`` with what it gave.

    Both run on the thread that traces, and must not raise.

    Returns:
        What ends it. Where another TensorFlow adds operations in a way that is not known, nothing
        is called.
    """
    original = vars(FuncGraph).get(_METHOD)
    if not inspect.isfunction(original):
        return _nothing
    is_on = True

    @functools.wraps(original)
    def _create_op_internal(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_on:
            return original(self, *args, **kwargs)
        building = begin(str(self.name))
        try:
            return original(self, *args, **kwargs)
        finally:
            end(building)

    # in stacks of operations it is left out with TensorFlow's own file
    wrapper: Any = _create_op_internal
    wrapper.__code__ = wrapper.__code__.replace(co_filename=original.__code__.co_filename)
    with _lock:
        setattr(FuncGraph, _METHOD, wrapper)

    def stop() -> None:
        nonlocal is_on
        is_on = False
        with _lock:
            if vars(FuncGraph).get(_METHOD) is wrapper:
                setattr(FuncGraph, _METHOD, original)

    return stop


def _nothing() -> None:
    """End nothing."""
