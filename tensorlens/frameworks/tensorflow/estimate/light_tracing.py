"""Lets TensorFlow build the graph of a step with less work; its operations are the same."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tensorlens.frameworks.tensorflow.estimate.light_graph import built_lightly

_lock = threading.Lock()


@contextmanager
def read_natively() -> Iterator[None]:
    """Have native code, and not Python, read what operations are given while it is entered.

    It is a flag of TensorFlow's own (``TF_FLAG_graph_building_optimization``) for the whole
    process, off by default. Where there is none, or another thread has it on for the moment,
    nothing is changed.
    """
    flag = _flag()
    if flag is None or not _lock.acquire(blocking=False):
        yield
        return
    try:
        before = flag.value()
        flag.reset(True)
        try:
            yield
        finally:
            flag.reset(before)
    finally:
        _lock.release()


def _flag() -> Any:
    try:
        from tensorflow.core.config import flags

        return flags.config().graph_building_optimization
    except (ImportError, AttributeError):
        return None


def lightly(step: Callable[[Any], Any], *, ordered: bool) -> Callable[[Any], Any]:
    """Return the step with a graph that takes less work.

    Args:
        step: a train step.
        ordered: whether the graph has edges that only order, which TensorFlow's
            ``AutomaticControlDependencies`` adds at the end of a trace. Who goes through the
            operations in the order of the program needs none.
    """

    @functools.wraps(step)
    def traced(data: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        with built_lightly(graph):
            made = step(data)
        manager = getattr(graph, "experimental_acd_manager", None)
        if manager is not None and not ordered:
            manager._n_operations = sys.maxsize
        return made

    return traced
