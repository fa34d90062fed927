"""Methods of TensorFlow's and Keras's classes with a wrapper of ours around them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tensorlens.interpreter import reentrant_lock

_lock = reentrant_lock()


def wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> Callable[[], None]:
    """Put around a method of a class what ``wrapper`` makes of it.

    Tracebacks, and stacks of operations, show it as part of the method: nobody sees a line of ours.

    Returns:
        What takes it off again, unless another wrapper lies above it.
    """
    original = vars(owner)[name]
    method: Any = functools.wraps(original)(wrapper(original))
    code = getattr(inspect.unwrap(original), "__code__", None)
    if code is not None:
        method.__code__ = method.__code__.replace(
            co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
        )
    with _lock:
        setattr(owner, name, method)

    def undo() -> None:
        with _lock:
            if vars(owner).get(name) is method:
                setattr(owner, name, original)

    return undo


class Shared:
    """Something that is put in place for the first who wants it, and taken away after the last.

    Args:
        begin: puts it in place and returns what takes it away.
    """

    def __init__(self, begin: Callable[[], Callable[[], None]]) -> None:
        self._begin = begin
        self._end: Callable[[], None] = nothing
        self._lock = reentrant_lock()
        self.users: tuple[tuple[Any], ...] = ()
        """Those who want it, each in a tuple of its own."""

    def add(self, user: Any = None) -> Callable[[], None]:
        """Have it for a user; return what ends that, on any thread and more than once."""
        place = (user,)
        with self._lock:
            if not self.users:
                self._end = self._begin()
            self.users = (*self.users, place)

        def stop() -> None:
            with self._lock:
                before = self.users
                self.users = tuple(each for each in before if each is not place)
                if before and not self.users:
                    self._end()

        return stop


def has_parameters(method: Any, *names: str) -> bool:
    """Tell whether a method is there and its first parameters are these."""
    try:
        return [*inspect.signature(method).parameters][: len(names)] == [*names]
    except (TypeError, ValueError):
        return False


def nothing() -> None:
    """Undo nothing."""
