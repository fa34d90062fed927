"""One stack trace for all the operations that the same lines made.

A hundred steps of a recurrent layer make thousands of operations, on some hundred different
stacks. Of each operation only those frames are looked at that are not on the stack of the one
before, and of each stack a trace is taken once, so that it is read once as well.
"""

from __future__ import annotations

import inspect
import threading
from types import CodeType, FrameType
from typing import Any

from tensorflow.python.util import tf_stack

_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SKIPPED = 3
"""Innermost frames that are no part of a trace: TensorFlow's, ours, and that of who asks."""


class SharedTraces(threading.local):
    """TensorFlow's stack traces of operations that a thread makes one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._outside: dict[FrameType, int] = {}
        """The last stack, outermost first: of each frame the number of the stack outside of it.

        The frames are referred to, so that none can be a later call in the same place of memory.
        """
        self._numbers: dict[tuple[int, int, int], int] = {}
        """Stacks by the number of the one outside, the address of the code, and where in it."""
        self._codes: list[CodeType] = []
        """What has these addresses."""
        self._traces: dict[int, Any] = {}

    def of(self, frame: FrameType | None) -> Any:
        """Return the trace of a stack by its innermost frame, which is the caller's own caller."""
        last, numbers = self._outside, self._numbers
        inner: list[FrameType] = []
        while frame is not None:
            inner.append(frame)
            # all that is outside of a running call stays there, but a generator is resumed
            if frame in last and not frame.f_code.co_flags & _RESUMED:
                break
            frame = frame.f_back
        number = -1
        while last:
            left, outside = last.popitem()
            if left is frame:
                number = outside
                break
        for each in reversed(inner):
            last[each] = number
            key = number, id(each.f_code), each.f_lasti
            number = numbers.setdefault(key, len(numbers))
            if number == len(self._codes):
                self._codes.append(each.f_code)
        trace = self._traces.get(number)
        if trace is None:
            trace = self._traces[number] = tf_stack.extract_stack(_SKIPPED)
        return trace

    def forget(self) -> None:
        """Let go of the frames."""
        self._outside.clear()
