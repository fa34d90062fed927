"""Watch for exceptions in a Keras model's batch functions: Keras calls no hook for them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tensorlens.integrations.epoch_report import EVALUATE, FIT, PREDICT
from tensorlens.recording.oom import address_reserve
from tensorlens.recording.oom.annotation import put

_NAMES = {FIT: "train_function", EVALUATE: "test_function", PREDICT: "predict_function"}
_ENDS_OF_DATA = ("StopIteration", "OutOfRangeError")
"""Exceptions of Python's and TensorFlow's iterators at the end of data."""


class WatchedFunctions:
    """Reports an exception of a batch to a callback, while the variables of ``fit`` are alive.

    These name the resident tensors; once the exception has left ``fit`` it would be too late.

    Args:
        failed: a method of the callback, held weakly; called with the exception.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = weakref.WeakMethod(failed)
        self._undo: dict[str, Callable[[], None]] = {}

    def watch(self, model: Any, kind: str) -> None:
        """Wrap the function of a loop, if the model has it, and reserve memory."""
        self.release(kind)
        name = _NAMES[kind]
        function = getattr(model, name, None)
        if callable(function):
            address_reserve.reserve()
            undo = put(model, name, _watched(function, self._failed))
            # Keras does not report the end of an interrupted loop
            self._undo[kind] = ending = weakref.finalize(self, _put_back, undo)
            ending.atexit = False

    def release(self, *kinds: str) -> None:
        """Restore the functions of these loops, or of all."""
        for kind in kinds or [*self._undo]:
            if kind in self._undo:
                self._undo.pop(kind)()


def _watched(
    function: Callable[..., Any], known: weakref.WeakMethod[Callable[[BaseException], None]]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except BaseException as error:
            failed = None if type(error).__name__ in _ENDS_OF_DATA else known()
            if failed is not None:
                failed(error)
            raise

    return run


def _put_back(undo: Callable[[], None]) -> None:
    address_reserve.release()
    with suppress(Exception):  # attributes of a model may be properties of the program's
        undo()
