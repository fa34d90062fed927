"""Follows calls of graph functions: told when Python calls one and when it is done.

All calls of a concrete function from Python, those of gradient functions and of Keras's ``fit``
included, go through ``Context.call_function`` of tensorflow/python/eager/context.py, and calls
from within a graph that is being traced do not.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import context

from tensorlens import locks
from tensorlens.signals import is_from_a_handler

_METHOD = "call_function"
_lock = locks.reentrant()
_followers: dict[Any, _Follower] = {}
"""Those that follow, or did below one that still does, by the method that each put in place."""


def not_followed() -> str | None:
    """Return why calls cannot be followed in this TensorFlow; None if they can."""
    method = vars(context.Context).get(_METHOD)
    if not inspect.isfunction(method) and not callable(method):
        return "this TensorFlow calls functions in a way that is not known"
    try:
        parameters = list(inspect.signature(method).parameters)
    except (TypeError, ValueError):
        parameters = []
    if parameters[:3] != ["self", "name", "tensor_inputs"]:
        return "this TensorFlow calls functions in a way that is not known"
    return None


def follow_calls(begin: Callable[[str], Callable[[], None] | None]) -> Callable[[], None]:
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
    if not_followed() is not None:
        return _nothing
    with _lock:
        follower = _Follower(begin, vars(context.Context)[_METHOD])
        method = _wrapper(follower)
        _followers[method] = follower
        setattr(context.Context, _METHOD, method)
    return follower.stop


class _Follower:
    """One method wrapped."""

    def __init__(
        self, begin: Callable[[str], Callable[[], None] | None], original: Callable[..., Any]
    ) -> None:
        self.begin: Callable[[str], Callable[[], None] | None] | None = begin
        self.original = original

    def started(self, name: Any) -> Callable[[], None] | None:
        """Tell that a function starts; return what to call when it is done."""
        begin = self.begin
        if begin is None:
            return None
        try:
            return begin(name.decode() if isinstance(name, bytes) else str(name))
        except Exception as error:  # the program goes on whatever happens in here
            if is_from_a_handler(error):
                raise
            return None

    def stop(self) -> None:
        """Follow no longer, and take off the class what only passes on and has nothing above it."""
        self.begin = None
        with _lock:
            while True:
                top = _followers.get(method := vars(context.Context).get(_METHOD))
                if top is None or top.begin is not None:
                    return
                setattr(context.Context, _METHOD, top.original)
                del _followers[method]


def _wrapper(follower: _Follower) -> Callable[..., Any]:
    original, started = follower.original, follower.started

    @functools.wraps(original)
    def call_function(self: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        end = started(name)
        if end is None:
            return original(self, name, *args, **kwargs)
        try:
            return original(self, name, *args, **kwargs)
        finally:
            _done(end)

    # tracebacks show it as part of the method it is around, so that TensorFlow leaves it out of
    # them as it does its own frames, and nobody sees a line of a tool
    code = getattr(inspect.unwrap(original), "__code__", None)
    if code is not None:
        plain: Any = call_function
        plain.__code__ = plain.__code__.replace(
            co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
        )
    return call_function


def _done(end: Callable[[], None]) -> None:
    try:
        end()
    except Exception as error:
        if is_from_a_handler(error):
            raise


def _nothing() -> None:
    return None
