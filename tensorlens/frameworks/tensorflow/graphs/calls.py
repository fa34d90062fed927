"""Follows calls of graph functions.

All calls of a concrete function from Python, those of gradient functions and of Keras's ``fit``
included, go through ``Context.call_function`` of tensorflow/python/eager/context.py, and calls
from within a graph that is being traced do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import context

from tensorlens.frameworks.tensorflow.wrapping import Shared, has_parameters, nothing, wrap
from tensorlens.guards import is_from_a_handler

_METHOD = "call_function"
_End = Callable[[], object]


def not_followed() -> str | None:
    """Return why calls cannot be followed in this TensorFlow; None if they can."""
    if has_parameters(vars(context.Context).get(_METHOD), "self", "name", "tensor_inputs"):
        return None
    return "this TensorFlow calls functions in a way that is not known"


def follow_calls(begin: Callable[[str], _End | None]) -> Callable[[], None]:
    """Call ``begin`` with the name of each function that is called, and what it gives at its end.

    Both run on the thread that calls, where Python's stack is still the caller's. Calls may nest:
    a function may call Python code that calls another one. The end also comes when the function
    fails. What both raise is swallowed, but for what a signal's handler raises there: the end may
    then be left out or cut short, and what has to end all the same ends when nobody refers to it
    any more. An exception that is kept, as the last one of a notebook, keeps it.

    With asynchronous execution, which programs must ask for, a call ends when the function has
    been queued.

    Returns:
        What ends it, which may be called from any thread and more than once. Where calls cannot be
        followed, see :func:`not_followed`, nothing is called and there is nothing to end.
    """
    return nothing if not_followed() is not None else _calls.add(begin)


def _wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_function(owner: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        ends: list[_End] = []
        try:
            _begin(name, ends)
            return original(owner, name, *args, **kwargs)
        finally:
            while ends:
                _end(ends.pop())

    return call_function


_calls = Shared(lambda: wrap(context.Context, _METHOD, _wrapper))


def _begin(name: Any, ends: list[_End]) -> None:
    text = name.decode() if isinstance(name, bytes) else str(name)
    for (begin,) in _calls.users:
        try:
            end = begin(text)
        except Exception as error:  # the program goes on whatever happens in here
            if is_from_a_handler(error):
                raise
            continue
        if end is not None:
            ends.append(end)


def _end(end: _End) -> None:
    try:
        end()
    except Exception as error:
        if is_from_a_handler(error):
            raise
