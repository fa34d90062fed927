"""Hooks into methods of TensorFlow and Keras: calls of graph functions, steps of optimizers."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import ops

from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.registry import when_imported
from tensorlens.guards import is_from_a_handler
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


def nothing() -> None:
    """Undo nothing."""


class _Harmless:
    """Keeps what fails inside from the program, but for what a signal's handler raises there."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return isinstance(error, Exception) and not is_from_a_handler(error)


harmless = _Harmless()

_METHOD = "call_function"
_End = Callable[[], object]


def not_followed() -> str | None:
    """Return why calls cannot be followed in this TensorFlow; None if they can."""
    if hasattr(context.Context, _METHOD):
        return None
    return "this TensorFlow calls functions in a way that is not known"


def follow_calls(begin: Callable[[str], _End | None]) -> Callable[[], None]:
    """Call ``begin`` with the name of each function that is called, and what it gives at its end.

    All calls of a concrete function from Python, those of gradient functions and of Keras's ``fit``
    included, go through ``Context.call_function`` of tensorflow/python/eager/context.py, and calls
    from within a graph that is being traced do not.

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
    return nothing if not_followed() is not None else _called.add(begin)


def _wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_function(owner: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        ends: list[_End] = []
        try:
            _begin(name, ends)
            return original(owner, name, *args, **kwargs)
        finally:
            while ends:
                with harmless:
                    ends.pop()()

    return call_function


_called = Shared(lambda: wrap(context.Context, _METHOD, _wrapper))


def _begin(name: Any, ends: list[_End]) -> None:
    text = name.decode() if isinstance(name, bytes) else str(name)
    for (begin,) in _called.users:
        with harmless:
            end = begin(text)
            if end is not None:
                ends.append(end)


_Act = Callable[[], None]

_acts: weakref.WeakKeyDictionary[Any, list[_Act]] = weakref.WeakKeyDictionary()
_latest: weakref.ref[Any] | None = None


_calls = threading.local()
"""``outermost``: the function that this thread has called."""


def follow() -> Callable[[], None]:
    """Follow the calls of every ``tf.function`` until what is returned is called."""
    return _followed.add()


def when_run(act: _Act) -> None:
    """Call ``act`` whenever the function that is now traced has run, this time too.

    Where one calls another it is the outermost that counts. Nothing happens where calls are not
    followed.
    """
    # the threads of a distribution strategy trace for the one that waits for them
    function = getattr(_calls, "outermost", None) or (_latest and _latest())
    if function is not None:
        acts = _acts.setdefault(function, [])
        if act not in acts:
            acts.append(act)


def _wrap() -> Callable[[], None]:
    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(self: Any, *arguments: Any, **options: Any) -> Any:
            global _latest
            if getattr(_calls, "outermost", None) is not None or not context.executing_eagerly():
                return original(self, *arguments, **options)
            _calls.outermost = self
            _latest = weakref.ref(self)
            try:
                result = original(self, *arguments, **options)
            finally:
                _calls.outermost = None
            for act in [*_acts.get(self, ())]:
                act()
            return result

        return called

    undo = wrap(polymorphic_function.Function, "__call__", wrapper)

    def end() -> None:
        undo()
        _acts.clear()

    return end


_followed = Shared(_wrap)


_MODULE = "keras.src.optimizers.base_optimizer"


def when_stepped(act: Callable[[], None]) -> Callable[[], None]:
    """Call ``act`` after each step of the program's first Keras optimizer; return what ends that.

    Where it steps inside of a ``tf.function``, as in ``fit``, that is whenever the outermost such
    function has run. When that optimizer is gone the next one to step takes its place. Keras may
    be imported later.
    """
    first: Callable[[], Any] = nothing
    is_over = False

    # wrappers and functions that it is known to may outlast it
    def told() -> None:
        if not is_over:
            act()

    def stepped(optimizer: Any) -> None:
        nonlocal first
        known = first()
        if known is None:
            first = weakref.ref(optimizer)
        elif known is not optimizer:
            return
        if ops.inside_function():
            when_run(told)
        else:
            told()

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, *arguments: Any, **options: Any) -> Any:
            result = original(optimizer, *arguments, **options)
            stepped(optimizer)
            return result

        return apply

    def imported() -> None:
        stack.callback(wrap(kinds.optimizer(), "apply", wrapper))

    stack = ExitStack()
    stack.callback(follow())
    stack.callback(when_imported(_MODULE, imported))

    def end() -> None:
        nonlocal is_over
        is_over = True
        stack.close()

    return end
