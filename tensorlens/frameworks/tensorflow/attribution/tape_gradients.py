"""Notes which weight a gradient belongs to when a tape gives it, while someone watches.

TensorFlow numbers its eager tensors from one counter, of the whole process, and never again alike.
So numbers are all that is noted, which keep nothing alive; and a number tells whether a tensor was
made while tapes were watched.
"""

from __future__ import annotations

import functools
import inspect
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
from tensorlens.heap.attributes import content_of

_METHOD = "gradient"
_PARAMETERS = ["self", "target", "sources"]
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
    original = vars(backprop.GradientTape).get(_METHOD)
    if not inspect.isfunction(original) or not _is_as_expected(original):
        return _nothing
    watcher = _Watcher(original)
    with _lock:
        setattr(backprop.GradientTape, _METHOD, watcher.method)
        _since = uid()
    return watcher.stop


def function_begins() -> int:
    """Return what :func:`function_ends` is told at the end of a graph function."""
    return int(uid())


def function_ends(begin: int) -> None:
    """Leave open what the tensors are that were made since a graph function began."""
    _functions.append((begin, int(uid())))


class _Watcher:
    """The method of tapes with one wrapper around it."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original
        self._on = True
        self.method = self._wrapper()

    def stop(self) -> None:
        """Note nothing any more, and take the wrapper off unless another one lies above it."""
        global _since
        with _lock:
            if not self._on:
                return
            self._on = False
            if _since is not None:
                _watched.append((_since, uid()))
                _since = None
            if vars(backprop.GradientTape).get(_METHOD) is self.method:
                setattr(backprop.GradientTape, _METHOD, self._original)

    def _wrapper(self) -> Callable[..., Any]:
        original = self._original

        @functools.wraps(original)
        def gradient(self_: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            first = uid() if self._on else -1
            result = original(self_, target, sources, *args, **kwargs)
            if first >= 0:
                try:
                    _notes.extend(_told(first, sources, result))
                except Exception:  # the program goes on whatever happens in here
                    return result
            return result

        # tracebacks show it as part of the method it is around
        code = inspect.unwrap(original).__code__
        plain: Any = gradient
        plain.__code__ = plain.__code__.replace(
            co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
        )
        return gradient


def _told(first: int, sources: Any, result: Any) -> Iterator[tuple[int, int, str]]:
    """Give the notes of what a tape gave; what is older than ``first`` is something else too."""
    for source, gradient in zip(nest.flatten(sources), nest.flatten(result), strict=True):
        parts = [each for each in _parts(gradient) if each[0] > first]
        if parts and is_resource_variable(source):
            handle = _handle(source)
            if type(handle) is EagerTensor:
                for number, suffix in parts:
                    yield number, handle._id, suffix


def _parts(gradient: Any) -> list[tuple[int, str]]:
    if type(gradient) is EagerTensor:
        return [(gradient._id, "grad")]
    if type(gradient) is not IndexedSlices:
        return []
    content = content_of(gradient)
    names = ("values", "indices", "dense_shape")
    found: list[tuple[Any, str]] = [(content.get(f"_{part}"), part) for part in names]
    return [(each._id, f"grad.{part}") for each, part in found if type(each) is EagerTensor]


def _handle(variable: Any) -> Any:
    """Return a variable's handle, which the tape has asked it for too."""
    is_keras = issubclass(type(variable), kinds.tensorflow_variable())
    # Keras's own ``handle`` may cast the value
    return (variable._value if is_keras else variable).handle


def _is_as_expected(method: Any) -> bool:
    try:
        return list(inspect.signature(method).parameters)[:3] == _PARAMETERS
    except (TypeError, ValueError):
        return False


def _nothing() -> None:
    return None
