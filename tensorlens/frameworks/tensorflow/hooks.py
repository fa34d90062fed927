"""Hooks into methods of TensorFlow and Keras.

They tell of calls of graph functions, of gradient functions, of runs of ``tf.function``s and of
steps of Keras's optimizers.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop, context
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import ops

from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.registry import when_imported
from tensorlens.guards import is_from_a_handler
from tensorlens.interpreter import reentrant_lock

_lock = reentrant_lock()


def wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace a method of a class by ``wrapper(method)``.

    Tracebacks and stacks of operations show the wrapper as part of the method, not as ours.

    Returns:
        A function that restores the method, unless it was replaced again.
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


class SharedHook:
    """A hook that is installed for its first user and removed after its last.

    Args:
        install: installs the hook and returns a function that removes it.
    """

    def __init__(self, install: Callable[[], Callable[[], None]]) -> None:
        self._install = install
        self._remove: Callable[[], None] = noop
        self._lock = reentrant_lock()
        self.users: tuple[tuple[Any], ...] = ()
        """The users, each in a tuple of its own."""

    def add(self, user: Any = None) -> Callable[[], None]:
        """Add a user; return a function that removes it, on any thread and more than once."""
        entry = (user,)
        with self._lock:
            if not self.users:
                self._remove = self._install()
            self.users = (*self.users, entry)

        def stop() -> None:
            with self._lock:
                before = self.users
                self.users = tuple(each for each in before if each is not entry)
                if before and not self.users:
                    self._remove()

        return stop


def noop() -> None:
    """Do nothing."""


class _Harmless:
    """Swallows exceptions of the code inside, but for those that a signal handler raises there."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return isinstance(error, Exception) and not is_from_a_handler(error)


harmless = _Harmless()

_METHOD = "call_function"
_End = Callable[[], object]


def not_followed() -> str | None:
    """Return why calls of graph functions cannot be followed here; None if they can."""
    if hasattr(context.Context, _METHOD):
        return None
    return "this TensorFlow calls functions in a way that is not known"


def follow_graph_calls(begin: Callable[[str], _End | None]) -> Callable[[], None]:
    """Call ``begin`` with the name of each called graph function, and its result at the call's end.

    All calls of a concrete function from Python, including those of gradient functions and of
    Keras's ``fit``, go through ``Context.call_function`` of tensorflow/python/eager/context.py;
    calls from within a graph that is being traced do not.

    Both run on the calling thread, where Python's stack is still the caller's. Calls may nest: a
    function may call Python code that calls another one. The end also comes if the function fails.
    Exceptions of both are swallowed, except those that a signal handler raises there. Such an
    exception may skip the end or cut it short; anything that must end has to end also when the last
    reference to it goes. A kept exception, such as the last one of a notebook, holds a reference.

    With asynchronous execution, which programs must ask for, a call ends when the function is
    queued.

    Returns:
        A function that ends this; any thread may call it, more than once. If calls cannot be
        followed, see :func:`not_followed`, it does nothing.
    """
    return noop if not_followed() is not None else _graph_calls.add(begin)


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


_graph_calls = SharedHook(lambda: wrap(context.Context, _METHOD, _wrapper))


def _begin(name: Any, ends: list[_End]) -> None:
    text = name.decode() if isinstance(name, bytes) else str(name)
    for (begin,) in _graph_calls.users:
        with harmless:
            end = begin(text)
            if end is not None:
                ends.append(end)


def follow_gradient_functions(
    call: Callable[[int, tuple[Any, ...]], None],
) -> Callable[[], None]:
    """Call ``call`` after each gradient function with its start time and arguments.

    The arguments are the operation's name, its attributes, the number of its inputs, the inputs,
    its outputs, and their gradients. Returns a function that ends this.
    """
    return _gradient_functions.add(call)


def _register() -> Callable[[], None]:
    pywrap_tfe.TFE_Py_RegisterGradientFunction(_gradient_function)
    return lambda: pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)


_gradient_functions = SharedHook(_register)


def _gradient_function(*arguments: Any) -> Any:
    begin = time.monotonic_ns()
    result = backprop._gradient_function(*arguments)
    with harmless:
        for (call,) in _gradient_functions.users:
            call(begin, arguments)
    return result


_acts: weakref.WeakKeyDictionary[Any, list[Callable[[], None]]] = weakref.WeakKeyDictionary()
"""``tf.function`` to the functions to call after each of its runs."""
_latest: weakref.ref[Any] | None = None
"""The outermost ``tf.function`` of the latest call on any thread."""
_calls = threading.local()
"""``outermost``: the outermost function that runs on this thread."""


def follow_tf_functions() -> Callable[[], None]:
    """Follow the runs of every ``tf.function``; return a function that ends this."""
    return _tf_functions.add()


def when_run(act: Callable[[], None]) -> None:
    """Call ``act`` after each run of the ``tf.function`` being traced, from the current run on.

    Of nested functions, the outermost counts. Does nothing unless runs are followed.
    """
    # the threads of a distribution strategy trace for the one that waits for them
    function = getattr(_calls, "outermost", None) or (_latest and _latest())
    if function is not None:
        acts = _acts.setdefault(function, [])
        if act not in acts:
            acts.append(act)


def _install_runs() -> Callable[[], None]:
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

    def remove() -> None:
        undo()
        _acts.clear()

    return remove


_tf_functions = SharedHook(_install_runs)

_OPTIMIZERS = "keras.src.optimizers.base_optimizer"


def when_stepped(act: Callable[[], None]) -> Callable[[], None]:
    """Call ``act`` after each step of the program's first Keras optimizer.

    If it steps inside a ``tf.function``, as in ``fit``, ``act`` is called after each run of the
    outermost such function. If that optimizer dies, the next one to step takes its place. Keras may
    be imported later. Returns a function that ends this.
    """
    first: Callable[[], Any] = noop
    is_over = False

    # wrappers and functions that refer to this may outlast end()
    def call() -> None:
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
            when_run(call)
        else:
            call()

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, *arguments: Any, **options: Any) -> Any:
            result = original(optimizer, *arguments, **options)
            stepped(optimizer)
            return result

        return apply

    def imported() -> None:
        stack.callback(wrap(kinds.optimizer(), "apply", wrapper))

    stack = ExitStack()
    stack.callback(follow_tf_functions())
    stack.callback(when_imported(_OPTIMIZERS, imported))

    def end() -> None:
        nonlocal is_over
        is_over = True
        stack.close()

    return end
