"""Functions that are traced again and again: each trace keeps a graph and what it captured."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import tensor
from tensorflow.python.util import tf_decorator

from tensorlens.heap import live_objects, select
from tensorlens.user_code import is_foreign

_FEWEST = 3
"""Steps below which nothing is said."""
_TENSOR = " tensor ("
_LONGEST = 40
"""Letters of an argument that are shown."""


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
        if steps < _FEWEST:
            return []
        notes: list[str] = []
        made: dict[str, int] = {}
        for function, count in _counts():
            known, before = self._before.get(id(function), (None, 0))
            is_new = known is None or known() is not function
            if is_new and not _is_librarys(function):
                made[_name(function)] = made.get(_name(function), 0) + 1
            traced = count if is_new else count - before
            if traced >= steps - 1:
                notes.append(_traced_again(function, traced, steps))
        notes += [
            f"{name} is made anew: {count} of it are there after {steps} steps, each with its "
            "graph: make the tf.function once, outside of the loop"
            for name, count in made.items()
            if count >= steps - 1 and count > 1
        ]
        return notes


def _traced_again(function: Any, traced: int, steps: int) -> str:
    text = f"{_name(function)} was traced {traced} times in {steps} steps"
    try:
        changed = _changed(function)
    except Exception:
        # what TensorFlow does not promise to show
        changed = None
    if changed is None:
        return (
            f"{text}, and each trace keeps its graph and what it captured: give it tensors in "
            "place of Python values, or an input_signature, or reduce_retracing=True"
        )
    name, before, after = changed
    is_shape = _TENSOR in before and _TENSOR in after
    remedy = (
        "give an input_signature with None for that dimension, or reduce_retracing=True"
        if is_shape
        else f"give {name} as a tensor, or leave it out of the arguments"
    )
    return (
        f"{text}, for {name} was {_short(before)} and then {_short(after)}, and each trace keeps "
        f"its graph and what it captured: {remedy}"
    )


def _changed(function: Any) -> tuple[str, str, str] | None:
    """Return the argument that told the last two traces apart, and what it was in each."""
    traces = [each.function_type for each in function._list_all_concrete_functions()]
    if len(traces) < 2:
        return None
    before, after = (dict(_arguments(each.parameters)) for each in traces[-2:])
    apart = [name for name, text in after.items() if before.get(name, text) != text]
    return (apart[0], before[apart[0]], after[apart[0]]) if len(apart) == 1 else None


def _arguments(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, parameter in parameters.items():
        kind = parameter.type_constraint
        if issubclass(type(kind), tensor.TensorSpec):
            yield name, f"a {kind.dtype.name} tensor {kind.shape}"
        else:
            yield name, repr(kind.value) if type(kind).__name__ == "Literal" else str(kind)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _counts() -> list[tuple[Any, int]]:
    (functions, *_) = select(live_objects(), (polymorphic_function.Function,))
    return [(function, function.experimental_get_tracing_count()) for function in functions]


def _is_librarys(function: Any) -> bool:
    """Tell whether a library's code makes it: a model's own step, of which each model has one."""
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
