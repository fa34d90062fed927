"""When an optimizer has stepped: how the steps of a loop that nobody marks are found."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

_METHOD = "apply"


class OptimizerSteps:
    """Calls ``act`` after each step of the program's first Keras optimizer in eager code.

    And after each batch of ``fit``, whose optimizer steps inside of a graph, as a batch ends.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._first: Callable[[], Any] = _nothing
        self._undo = [
            undo
            for module, name, method, after in (
                *((m, n, _METHOD, self._stepped) for m, n in _OPTIMIZERS),
                *((m, n, "on_train_batch_end", self._batch_ended) for m, n in _CALLBACKS),
            )
            if (undo := _wrap(module, name, method, after)) is not None
        ]

    def close(self) -> None:
        """Call it no longer."""
        while self._undo:
            self._undo.pop()()

    def _stepped(self, optimizer: Any) -> None:
        from tensorflow.python.framework import ops

        if ops.inside_function():
            return
        known = self._first()
        if known is None:
            self._first = weakref.ref(optimizer)
        if known is None or known is optimizer:
            self._act()

    def _batch_ended(self, callbacks: Any) -> None:
        model = getattr(callbacks, "_model", None)
        # an eager step's optimizer has told already
        if model is not None and not getattr(model, "run_eagerly", False):
            self._act()


_OPTIMIZERS = (("keras.src.optimizers.base_optimizer", "BaseOptimizer"),)
_CALLBACKS = (("keras.src.callbacks.callback_list", "CallbackList"),)


def _wrap(
    module: str, name: str, method: str, after: Callable[[Any], None]
) -> Callable[[], None] | None:
    """Call ``after`` with the object after each call of a method; return what undoes it."""
    kind = getattr(sys.modules.get(module), name, None)
    original = vars(kind).get(method) if kind is not None else None
    if original is None:
        return None

    @functools.wraps(original)
    def wrapper(self: Any, *arguments: Any, **options: Any) -> Any:
        result = original(self, *arguments, **options)
        after(self)
        return result

    setattr(kind, method, wrapper)

    def undo() -> None:
        if vars(kind).get(method) is wrapper:
            setattr(kind, method, original)

    return undo


def _nothing() -> None:
    return None
