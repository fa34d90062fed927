"""When a ``tf.function`` has run: how often something inside of it was done, without a trace."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import polymorphic_function

_Act = Callable[[], None]
_METHOD = "__call__"

_lock = threading.Lock()
_users = 0
_undo: Callable[[], None] | None = None
_acts: weakref.WeakKeyDictionary[Any, list[_Act]] = weakref.WeakKeyDictionary()
_latest: weakref.ref[Any] | None = None


class _Calls(threading.local):
    def __init__(self) -> None:
        self.outermost: Any = None


_calls = _Calls()


def follow() -> Callable[[], None]:
    """Follow the calls of every ``tf.function`` until what is returned is called."""
    global _users, _undo
    with _lock:
        _users += 1
        if _undo is None:
            _undo = _wrap()
    done = threading.Event()

    def stop() -> None:
        global _users, _undo
        with _lock:
            if done.is_set():
                return
            done.set()
            _users -= 1
            if not _users and _undo is not None:
                _undo()
                _undo = None
                _acts.clear()

    return stop


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
    kind = polymorphic_function.Function
    original = vars(kind)[_METHOD]

    @functools.wraps(original)
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

    setattr(kind, _METHOD, called)

    def undo() -> None:
        if vars(kind).get(_METHOD) is called:
            setattr(kind, _METHOD, original)

    return undo
