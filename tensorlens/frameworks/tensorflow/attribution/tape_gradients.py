"""Notes which weight a gradient belongs to when a tape gives it, while someone watches.

TensorFlow numbers its eager tensors from one counter, of the whole process, and never again alike.
So numbers are all that is noted, which keep nothing alive; and a number tells whether a tensor was
made while tapes were watched.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tensorflow.python.eager import backprop
from tensorflow.python.framework.indexed_slices import IndexedSlices
from tensorflow.python.framework.ops import EagerTensor, uid
from tensorflow.python.ops.resource_variable_ops import is_resource_variable
from tensorflow.python.util import nest

from tensorlens import locks
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.tensorflow.wrapping import has_parameters, nothing, wrap
from tensorlens.heap.attributes import content_of

_METHOD = "gradient"
_MOST = 100_000
"""Gradients that are noted; the oldest are forgotten first."""
_MOST_SPANS = 10_000

Span = tuple[int, int]
"""The first number, and the first number that is beyond it."""

_lock = locks.reentrant()
_notes: deque[tuple[int, int, str]] = deque(maxlen=_MOST)
"""Numbers of a gradient and of its variable's handle, and what is added to the variable's name."""
_watched: deque[Span] = deque(maxlen=_MOST_SPANS)
"""When tapes were watched."""
_since: int | None = None
"""The number of the moment since which they are watched, or None."""
_functions: deque[Span] = deque(maxlen=_MOST_SPANS)
"""When graph functions ran: whether what they return is a gradient is not known."""


class NotedGradients:
    """Gradients that tapes have given by now, with their weights."""

    def __init__(self) -> None:
        notes = list(_notes)
        self.of: Mapping[int, tuple[int, str]] = {
            number: (handle, suffix) for number, handle, suffix in reversed(notes)
        }
        """Number of a tensor to that of its variable's handle, and what it is of the gradient."""
        functions, watched, since = list(_functions), list(_watched), _since
        if since is not None:
            watched.append((since, uid()))
        self._watched, self._functions = _Spans(watched), _Spans(functions)
        # what came before the oldest that is kept has been forgotten
        self._first = max(
            notes[0][0] + 1 if len(notes) == _MOST else 0,
            functions[0][0] if len(functions) == _MOST_SPANS else 0,
        )

    def tells(self, number: int) -> bool:
        """Tell whether it is known if the tensor of that number is a gradient, and of what."""
        if number in self.of:
            return True
        return number >= self._first and number in self._watched and number not in self._functions


class _Spans:
    """Numbers in any of some spans."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in sorted(spans):
            if self._ends and begin <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._begins.append(begin)
                self._ends.append(end)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._begins, number) - 1
        return place >= 0 and number < self._ends[place]


def watch_tapes() -> Callable[[], None]:
    """Note the gradients that tapes give from now on; return what ends that.

    One at a time. Where this TensorFlow's tapes are not as expected nothing is noted.
    """
    global _since
    if not has_parameters(vars(backprop.GradientTape).get(_METHOD), "self", "target", "sources"):
        return nothing
    is_on = True

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            first = uid() if is_on else -1
            result = original(self, target, sources, *args, **kwargs)
            if first >= 0:
                # the program goes on whatever happens in here
                with contextlib.suppress(Exception):
                    _notes.extend(_told(first, sources, result))
            return result

        return gradient

    undo = wrap(backprop.GradientTape, _METHOD, wrapper)
    with _lock:
        _since = uid()

    def stop() -> None:
        nonlocal is_on
        global _since
        is_on = False
        with _lock:
            if _since is not None:
                _watched.append((_since, uid()))
                _since = None
        undo()

    return stop


def function_begins() -> int:
    """Return what :func:`function_ends` is told at the end of a graph function."""
    return int(uid())


def function_ends(begin: int) -> None:
    """Leave open what the tensors are that were made since a graph function began."""
    _functions.append((begin, int(uid())))


def _told(first: int, sources: Any, result: Any) -> Iterator[tuple[int, int, str]]:
    """Give the notes of what a tape gave; what is older than ``first`` is something else too."""
    for source, gradient in zip(nest.flatten(sources), nest.flatten(result), strict=True):
        parts = [(part._id, what) for part, what in parts_of(gradient) if part._id > first]
        if parts and is_resource_variable(source):
            handle = _handle(source)
            if type(handle) is EagerTensor:
                for number, suffix in parts:
                    yield number, handle._id, suffix


def parts_of(gradient: Any) -> list[tuple[Any, str]]:
    """Return the tensors of a gradient, and what is added to the weight's name for each."""
    if type(gradient) is EagerTensor:
        return [(gradient, "grad")]
    if type(gradient) is not IndexedSlices:
        return []
    content = content_of(gradient)
    found = [(content.get(f"_{part}"), part) for part in ("values", "indices", "dense_shape")]
    return [(each, f"grad.{part}") for each, part in found if type(each) is EagerTensor]


def _handle(variable: Any) -> Any:
    """Return a variable's handle, which the tape has asked it for too."""
    is_keras = issubclass(type(variable), kinds.tensorflow_variable())
    # Keras's own ``handle`` may cast the value
    return (variable._value if is_keras else variable).handle
