"""A loop's steps in TensorFlow: the memory allocated after each, and the blocks that each left."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from typing import Any

from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.util import tf_decorator

from tensorlens.frameworks.base import StepFigures
from tensorlens.frameworks.host.loop_steps import Steps
from tensorlens.frameworks.retention import Holdings
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.census.holdings import TensorflowHoldings
from tensorlens.frameworks.tensorflow.counters import device_counter, used_devices
from tensorlens.frameworks.tensorflow.cpu import watch
from tensorlens.heap import live_objects, select
from tensorlens.user_code import is_foreign


class TensorflowSteps(Steps):
    """Follows a loop until it is closed; costs next to nothing while a step runs.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
    """

    def __init__(self) -> None:
        self._unwatch = watch()
        super().__init__(cpu.cpu_counter(), cpu.allocator(), cpu.fallback_reason())
        self._traces = Traces()

    def figures(self) -> StepFigures:
        """Return the allocated memory."""
        return self._figures({device: device_counter(device) for device in used_devices()})

    def notes(self) -> list[str]:
        """Return notes for the report on what could not be followed."""
        notes = super().notes() + self._traces.notes(self._stride * (len(self._begun) - 1))
        used = ", ".join(used_devices())
        if used:
            notes.append(
                f"{used}: only the sums are followed: TensorFlow does not tell of single blocks"
            )
        return notes

    def holdings(self, addresses: Sequence[int]) -> Holdings:
        """Search the heap once for the holders of the blocks at these addresses."""
        return TensorflowHoldings(addresses)

    def close(self) -> None:
        """Stop following."""
        self._unwatch()


_MIN_STEPS = 3
"""Steps below which nothing is said."""


class Traces:
    """Counts how often each ``tf.function`` is traced from now on."""

    def __init__(self) -> None:
        self._before = {
            id(function): (weakref.ref(function), count) for function, count in _counts()
        }

    def notes(self, steps: int) -> list[str]:
        """Return notes on functions that nearly each of ``steps`` steps traces or makes anew."""
        if steps < _MIN_STEPS:
            return []
        notes: list[str] = []
        made: dict[str, int] = {}
        for function, count in _counts():
            known, before = self._before.get(id(function), (None, 0))
            is_new = known is None or known() is not function
            if is_new and not _is_of_library(function):
                made[_name(function)] = made.get(_name(function), 0) + 1
            traced = count if is_new else count - before
            if traced >= steps - 1:
                notes.append(
                    f"{_name(function)} was traced {traced} times in {steps} steps, and each trace "
                    "keeps its graph and what it captured: give it tensors in place of Python "
                    "values, or an input_signature, or reduce_retracing=True"
                )
        notes += [
            f"{name} is made anew: {count} of it are there after {steps} steps, each with its "
            "graph: make the tf.function once, outside of the loop"
            for name, count in made.items()
            if count >= steps - 1 and count > 1
        ]
        return notes


def _counts() -> list[tuple[Any, int]]:
    (functions, *_) = select(live_objects(), (polymorphic_function.Function,))
    return [(function, function.experimental_get_tracing_count()) for function in functions]


def _is_of_library(function: Any) -> bool:
    """Return whether a library makes a function, as Keras makes a step for each model."""
    code = _code(function)
    return code is None or is_foreign(code.co_filename)


def _code(function: Any) -> Any:
    inner: Any = getattr(function, "python_function", None)
    return getattr(inspect.unwrap(tf_decorator.unwrap(inner)[1]), "__code__", None)


def _name(function: Any) -> str:
    code = _code(function)
    if code is None:
        return str(getattr(function, "_name", "a tf.function"))
    filename = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{code.co_qualname} ({filename}:{code.co_firstlineno})"
