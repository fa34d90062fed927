"""Exceptions that leave the methods of a trainer that tells no callback of them."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar, cast

from tensorlens import locks
from tensorlens.heap.frames import self_of
from tensorlens.heap.rows import is_subtype
from tensorlens.recording.oom.hooks import put

_Trainer = TypeVar("_Trainer")
_Failed = Callable[[Any, BaseException], None]


@dataclass(slots=True)
class _Watch:
    trainer: weakref.ref[Any]
    failed: weakref.WeakMethod[_Failed]
    is_inside: bool = False
    """One of the methods runs, so that an exception of those it calls leaves it as well."""


_lock = locks.reentrant()
_watches: dict[int, _Watch] = {}
"""By the address of the trainer: it may have equality and a hash of its own, or none."""
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
        if _watch_of(trainer) is not None:
            return
        weakref.finalize(trainer, _put_back, id(trainer)).atexit = False
        _watches[id(trainer)] = _Watch(weakref.ref(trainer), weakref.WeakMethod(failed))
        for name in methods:
            owner = next((each for each in type(trainer).__mro__ if name in vars(each)), None)
            if owner is not None and (owner, name) not in _undo:
                _undo[owner, name] = put(owner, name, _watched(vars(owner)[name]))


def calling(kind: type[_Trainer]) -> _Trainer | None:
    """Return the trainer of a kind that calls, which its callbacks are not given; None without."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # its own methods call, also those of a subclass; the variables of others are not read
        if frame.f_globals.get("__name__") == kind.__module__:
            caller = self_of(frame)
            if is_subtype(type(caller), kind):
                return cast(_Trainer, caller)
        frame = frame.f_back
    return None


def _watched(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        watch = _watch_of(self)
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


def _watch_of(trainer: Any) -> _Watch | None:
    watch = _watches.get(id(trainer))
    return watch if watch is not None and watch.trainer() is trainer else None


def _put_back(address: int) -> None:
    """A trainer is gone: where it was the last, the methods are as before."""
    with _lock:
        _watches.pop(address, None)
        if not _watches:
            for undo in _undo.values():
                undo()
            _undo.clear()
