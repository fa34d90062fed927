"""Hooks after runs of ``tf.function``s and after steps of Keras's optimizers."""

from __future__ import annotations

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
from tensorlens.frameworks.tensorflow.hooks import SharedHook, noop, wrap

_Act = Callable[[], None]

_acts: weakref.WeakKeyDictionary[Any, list[_Act]] = weakref.WeakKeyDictionary()
"""What to call after the runs of a ``tf.function``."""
_latest: weakref.ref[Any] | None = None
"""The outermost function that any thread called last."""
_calls = threading.local()
"""``outermost``: the outermost function that runs on this thread."""


def follow_tf_functions() -> Callable[[], None]:
    """Follow the runs of every ``tf.function``; return a function that ends this."""
    return _tf_functions.add()


def when_run(act: _Act) -> None:
    """Call ``act`` after each run of the function that is being traced, this one included.

    If one function calls another, it is the outermost. Does nothing unless runs are followed.
    """
    # the threads of a distribution strategy trace for the one that waits for them
    function = getattr(_calls, "outermost", None) or (_latest and _latest())
    if function is not None:
        acts = _acts.setdefault(function, [])
        if act not in acts:
            acts.append(act)


def _install() -> Callable[[], None]:
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


_tf_functions = SharedHook(_install)

_OPTIMIZERS = "keras.src.optimizers.base_optimizer"


def when_stepped(act: Callable[[], None]) -> Callable[[], None]:
    """Call ``act`` after each step of the program's first Keras optimizer.

    If it steps inside a ``tf.function``, as in ``fit``, ``act`` is called after each run of the
    outermost such function. If that optimizer dies, the next one to step takes its place. Keras may
    be imported later. Returns a function that ends this.
    """
    first: Callable[[], Any] = noop
    is_over = False

    # wrappers and functions that refer to it may outlast it
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
