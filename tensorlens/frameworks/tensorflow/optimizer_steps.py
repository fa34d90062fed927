"""When an optimizer has stepped: how the steps of a loop that nobody marks are found."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from tensorflow.python.framework import ops

from tensorlens.frameworks.arrival import when_imported
from tensorlens.frameworks.tensorflow import graph_runs

_MODULE = "keras.src.optimizers.base_optimizer"
_KIND = "BaseOptimizer"
_METHOD = "apply"


class OptimizerSteps:
    """Calls ``act`` after each step of the program's first Keras optimizer.

    Where it steps inside of a ``tf.function``, as in ``fit``, that is whenever the outermost such
    function has run. When that optimizer is gone the next one to step takes its place. Keras may
    be imported later.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._first: Callable[[], Any] = _nothing
        self._undo = [graph_runs.follow()]
        self._undo.append(when_imported(_MODULE, self._wrap))

    def close(self) -> None:
        """Call it no longer."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self) -> None:
        kind = getattr(sys.modules.get(_MODULE), _KIND, None)
        original = vars(kind).get(_METHOD) if kind is not None else None
        if original is None:
            return
        stepped = self._stepped

        @functools.wraps(original)
        def wrapper(self: Any, *arguments: Any, **options: Any) -> Any:
            result = original(self, *arguments, **options)
            stepped(self)
            return result

        setattr(kind, _METHOD, wrapper)

        def undo() -> None:
            if vars(kind).get(_METHOD) is wrapper:
                setattr(kind, _METHOD, original)

        self._undo.append(undo)

    def _stepped(self, optimizer: Any) -> None:
        known = self._first()
        if known is None:
            self._first = weakref.ref(optimizer)
        elif known is not optimizer:
            return
        if ops.inside_function():
            graph_runs.when_run(self._act)
        else:
            self._act()


def when_stepped(act: Callable[[], None]) -> Callable[[], None]:
    """Call ``act`` after each step of the program's first optimizer; return what ends that."""
    return OptimizerSteps(act).close


def _nothing() -> None:
    return None
