"""Line events on Python 3.11 of frames that already run: a block, a program's top level.

Their code can no longer be exchanged, so they get a trace function, unless the thread has that of
another tool (a debugger, coverage).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from tensorlens.lines.tracing.activation import Activation

if TYPE_CHECKING:
    from tensorlens.lines.tracing.engine import ThreadState


class RunningFrames:
    """The frames of all threads that have our trace function.

    Args:
        thread: returns the state of the calling thread.
    """

    def __init__(self, thread: Callable[[], ThreadState]) -> None:
        self._thread = thread
        self._frames: dict[int, Activation] = {}
        """Frame identity to activation."""

    def adopt(self, activation: Activation, frame: FrameType) -> str | None:
        """Trace a frame from its next line on; return why that cannot be, or None."""
        current = sys.gettrace()
        if current is not None and current != self._on_call:
            return f"{_name(current)} traces this thread: on Python 3.11 a block has no lines then"
        self._frames[id(frame)] = activation
        frame.f_trace = self._on_event
        sys.settrace(self._on_call)
        return None

    def release(self, activation: Activation, frame: FrameType) -> str | None:
        """Undo :meth:`adopt`; return what went wrong meanwhile, or None."""
        if self._frames.pop(activation.frame, None) is None:
            return None
        # an ExitStack begins in one frame and ends in another
        if id(frame) == activation.frame:
            frame.f_trace = None
        # the next call ends the tracing if none of our frames is left
        current = sys.gettrace()
        if activation.thread is not self._thread():
            return "the block went on in another thread: on Python 3.11 its lines there are missing"
        if current is None:
            return "something removed the trace function: lines that ran after it are missing"
        if current != self._on_call:
            return f"{_name(current)} took over: lines that ran after it are missing"
        others = [*self._frames.values()]  # of other threads as well
        if all(each.thread is not activation.thread for each in others):
            sys.settrace(None)
        return None

    def _on_call(self, frame: FrameType, event: str, arg: Any) -> None:
        """Trace function for calls in the thread; a call may resume one of our frames."""
        if not self._frames:
            # the last one has ended in another thread
            sys.settrace(None)
        activation = self._frames.get(id(frame))
        if activation is not None:
            try:
                activation.thread = self._thread()
                activation.resume(frame.f_lineno)
            except Exception as failure:
                activation.fail(failure)

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        """Trace function of our frames; CPython keeps it though it returns None."""
        activation = self._frames.get(id(frame))
        if activation is None:
            return
        try:
            if event == "line":
                activation.line(frame.f_lineno)
            elif event == "return":
                activation.finish()
        except Exception as failure:
            activation.fail(failure)


def _name(tracer: Any) -> str:
    return f"another tracer ({getattr(tracer, '__qualname__', type(tracer).__qualname__)})"
