"""Finds the steps of a loop that nobody marks: calls of ``tf.function`` and of optimizers."""

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
from tensorlens.frameworks.tensorflow.wrapping import Shared, nothing, wrap

_Act = Callable[[], None]

_acts: weakref.WeakKeyDictionary[Any, list[_Act]] = weakref.WeakKeyDictionary()
_latest: weakref.ref[Any] | None = None


class _Calls(threading.local):
    def __init__(self) -> None:
        self.outermost: Any = None


_calls = _Calls()


def follow() -> Callable[[], None]:
    """Follow the calls of every ``tf.function`` until what is returned is called."""
    return _followed.add()


def when_run(act: _Act) -> None:
    """Call ``act`` whenever the function that is now traced has run, this time too.

    Where one calls another it is the outermost that counts. Nothing happens where calls are not
    followed.
    """
    # the threads of a distribution strategy trace for the one that waits for them
    function = _calls.outermost or (_latest and _latest())
    if function is not None:
        acts = _acts.setdefault(function, [])
        if act not in acts:
            acts.append(act)


def _wrap() -> Callable[[], None]:
    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(self: Any, *arguments: Any, **options: Any) -> Any:
            global _latest
            if _calls.outermost is not None or not context.executing_eagerly():
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

    def stepped(optimizer: Any) -> None:
        nonlocal first
        known = first()
        if known is None:
            first = weakref.ref(optimizer)
        elif known is not optimizer:
            return
        if ops.inside_function():
            when_run(act)
        else:
            act()

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
    return stack.close
