"""Functions that are traced again and again: each trace keeps a graph and what it captured."""

from __future__ import annotations

import weakref
from typing import Any

from tensorflow.python.eager.polymorphic_function import polymorphic_function

from tensorlens.frameworks.heap import living, select


class Traces:
    """How often each ``tf.function`` was traced, from the making of this on."""

    def __init__(self) -> None:
        self._before = {
            id(function): (weakref.ref(function), count) for function, count in _counts()
        }

    def notes(self, steps: int) -> list[str]:
        """Return a line for each function that was traced about once a step.

        Args:
            steps: how many there were; what is traced now and then is no growth.
        """
        if steps < 3:
            return []
        notes = []
        for function, count in _counts():
            known, before = self._before.get(id(function), (None, 0))
            traced = count - (before if known is not None and known() is function else 0)
            if traced >= steps - 1:
                notes.append(
                    f"{_name(function)} was traced {traced} times in {steps} steps, and each trace "
                    "keeps its graph and what it captured: give it tensors in place of Python "
                    "values, or an input_signature, or reduce_retracing=True"
                )
        made = [each for each, _ in _counts() if id(each) not in self._before]
        by_name: dict[str, int] = {}
        for function in made:
            by_name[_name(function)] = by_name.get(_name(function), 0) + 1
        notes += [
            f"{name} is made anew: {count} of it live after {steps} steps, each with its graph: "
            "make the tf.function once, outside of the loop"
            for name, count in by_name.items()
            if count >= steps - 1 and count > 1
        ]
        return notes


def _counts() -> list[tuple[Any, int]]:
    (functions, *_) = select(living(), (polymorphic_function.Function,))
    return [(function, function.experimental_get_tracing_count()) for function in functions]


def _name(function: Any) -> str:
    code = getattr(getattr(function, "python_function", None), "__code__", None)
    if code is None:
        return str(getattr(function, "_name", "a tf.function"))
    filename = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{code.co_qualname} ({filename}:{code.co_firstlineno})"
