"""The functions with which a model of Keras runs its batches: no hook is told of an exception."""

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
"""How an iterator of Python's, or of TensorFlow's, says that there are no more batches."""


class WatchedFunctions:
    """Tells a callback of an exception that leaves a batch, while the variables of ``fit`` live.

    They name what is resident, so that an exception that has left ``fit`` would come too late.

    Args:
        failed: a method of the callback, which is not kept; it takes the exception.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = weakref.WeakMethod(failed)
        self._undo: dict[str, Callable[[], None]] = {}

    def watch(self, model: Any, kind: str) -> None:
        """Stand around the function of a loop, if the model has it, and keep memory back."""
        self.release(kind)
        name = _NAMES[kind]
        function = getattr(model, name, None)
        if callable(function):
            address_reserve.reserve()
            undo = put(model, name, _watched(function, self._failed))
            # a loop that an interrupt ended is never said to have ended
            self._undo[kind] = ending = weakref.finalize(self, _put_back, undo)
            ending.atexit = False

    def release(self, *kinds: str) -> None:
        """Put back the functions of these loops, or of all."""
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
