"""Line events on Python 3.11 of frames that run already: a block, a program's top level.

Their code cannot be exchanged any more, so that they get a trace function. A trace function of
the thread that was there before (a debugger, coverage) keeps getting its events: ours calls it.
"""

from __future__ import annotations

import functools
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from tensorlens.lines.tracing.activation import Activation

if TYPE_CHECKING:
    from tensorlens.lines.tracing.engine import ThreadState

_REMOVED = "something removed the trace function: lines that ran after it are missing"


class RunningFrames:
    """The frames of all threads that have a trace function of ours."""

    def __init__(self) -> None:
        self._frames: dict[int, tuple[Activation, list[Any]]] = {}
        """By identity, and the local trace function that is another tool's."""

    def adopt(self, thread: ThreadState, activation: Activation, frame: FrameType) -> None:
        """Trace a frame that is running already, from its next line on."""
        activation.enter()
        self._frames[id(frame)] = activation, [frame.f_trace]
        frame.f_trace = self._on_event
        if thread.ours is None:
            thread.previous = sys.gettrace()
            thread.ours = functools.partial(self._on_call, thread)
            sys.settrace(thread.ours)
        thread.traced += 1

    def release(self, thread: ThreadState, frame: FrameType) -> str | None:
        """Give the frame its own trace function back; return what went wrong, or None."""
        if id(frame) not in self._frames:
            return None
        _, (frame.f_trace,) = self._frames.pop(id(frame))
        thread.traced -= 1
        if thread.traced:
            return None
        current, ours, previous = sys.gettrace(), thread.ours, thread.previous
        thread.ours = thread.previous = None
        if current is ours:
            sys.settrace(previous)
            return None
        if current is None:
            return _REMOVED
        name = getattr(current, "__qualname__", type(current).__qualname__)
        return f"another tracer ({name}) took over: lines that ran after it are missing"

    def _on_call(self, thread: ThreadState, frame: FrameType, event: str, arg: Any) -> Any:
        """Take the call of any function in the thread; one of our frames may go on so."""
        activation, others = self._frames.get(id(frame), (None, []))
        if activation is not None:
            try:
                activation.thread = thread
                activation.resume(frame.f_lineno)
            except Exception as failure:
                activation.fail(failure)
        if thread.previous is None:
            return None
        chained = thread.previous(frame, event, arg)
        _keep(thread)
        if activation is None:
            return chained
        others[:] = [chained]
        return None

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        """Take an event of one of our frames; None has CPython go on with this function."""
        activation, others = self._frames.get(id(frame), (None, [None]))
        if activation is None:
            return
        try:
            if event == "line":
                activation.line(frame.f_lineno)
            elif event == "return":
                activation.finish()
        except Exception as failure:
            activation.fail(failure)
        if others[0] is not None:
            others[0] = others[0](frame, event, arg)
            _keep(activation.thread)


def _keep(thread: ThreadState) -> None:
    """Stay installed after calling the other tool's trace function.

    coverage's C tracer installs itself anew whenever it is called from Python, and pdb's
    ``continue`` removes every trace function of the thread.
    """
    current = sys.gettrace()
    if current is not thread.ours and thread.ours is not None:
        thread.previous = current
        sys.settrace(thread.ours)
