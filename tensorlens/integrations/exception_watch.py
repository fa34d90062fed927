"""Exceptions that leave the methods of a trainer that tells no callback of them."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

from tensorlens import locks
from tensorlens.recording.oom.hooks import put

_Trainer = TypeVar("_Trainer")
_Failed = Callable[[Any, BaseException], None]


@dataclass(slots=True)
class _Watch:
    failed: weakref.WeakMethod[_Failed]
    is_inside: bool = False
    """One of the methods runs, so that an exception of those it calls leaves it as well."""


_lock = locks.reentrant()
_watches: weakref.WeakKeyDictionary[Any, _Watch] = weakref.WeakKeyDictionary()
_undo: dict[tuple[type, str], Callable[[], None]] = {}
"""Class and name of each method that is watched, and what puts it back."""


def watch_exceptions(trainer: Any, methods: Sequence[str], failed: _Failed) -> None:
    """Tell a callback of each exception that leaves the outermost of some methods of its trainer.

    The methods are watched in the classes that define them, as a function that the trainer itself
    held would keep it alive; they are as before when the last watched trainer is gone. Neither
    the trainer nor the callback is kept.

    Args:
        trainer: whose methods are watched.
        methods: their names; those that it has not are left out.
        failed: a method of the callback; it takes the trainer and the exception, and raises none.
    """
    with _lock:
        if trainer in _watches:
            return
        # first, as the callbacks of a weak reference run newest first: the watch is gone by then
        weakref.finalize(trainer, _put_back).atexit = False
        _watches[trainer] = _Watch(weakref.WeakMethod(failed))
        for name in methods:
            owner = next((each for each in type(trainer).__mro__ if name in vars(each)), None)
            if owner is not None and (owner, name) not in _undo:
                _undo[owner, name] = put(owner, name, _watched(vars(owner)[name]))


def calling(kind: type[_Trainer]) -> _Trainer | None:
    """Return the trainer of a kind that calls, which its callbacks are not given; None without."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, kind):
            return caller
        frame = frame.f_back
    return None


def _watched(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        watch = _watches.get(self)
        if watch is None or watch.is_inside:
            return method(self, *arguments, **options)
        watch.is_inside = True
        try:
            return method(self, *arguments, **options)
        except BaseException as error:
            failed = watch.failed()
            if failed is not None:
                failed(self, error)
            raise
        finally:
            watch.is_inside = False

    return run


def _put_back() -> None:
    """A trainer is gone: where it was the last, the methods are as before."""
    with _lock:
        if not _watches:
            for undo in _undo.values():
                undo()
            _undo.clear()
