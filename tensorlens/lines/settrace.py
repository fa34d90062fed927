"""Line events before Python 3.12: ``sys.settrace``, only while profiled code is running.

The trace function of a debugger or of coverage that is there already keeps getting its events:
ours calls it. One that takes ``sys.settrace`` over while profiled code runs (``breakpoint()``)
is given way to, and the report says so.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from tensorlens.lines.accounting import Account, Activation
from tensorlens.lines.threads import Threads, ThreadState
from tensorlens.lines.tracer import Watched, open_activation

Trace = Callable[[FrameType, str, Any], Any]

_RETURN = dis.opmap["RETURN_VALUE"]
_SWALLOWED = (StopIteration, StopAsyncIteration)
"""Seen as an exception event wherever a loop or an await comes to its end."""


class LocalTrace:
    """The trace function of one profiled frame."""

    __slots__ = ("activation", "chained", "error")

    def __init__(self, activation: Activation) -> None:
        self.activation = activation
        self.chained: Any = None
        """The local trace function of the debugger or coverage tool beside us."""
        self.error: BaseException | None = None
        """The exception that may be leaving the frame."""

    def on_event(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        """Take an event of the frame; nothing that fails here may reach the program.

        CPython keeps a frame's trace function when it answers None (sysmodule.c,
        trace_trampoline); that spares a reference from us to our own method, and so a cycle
        for the garbage collector at every profiled call.
        """
        try:
            if event == "line":
                self.error = None
                self.activation.line(frame.f_lineno)
            elif event == "return":
                self._leave(frame, arg)
            elif event == "exception" and not issubclass(arg[0], _SWALLOWED):
                self.error = arg[1]
        except Exception as failure:
            self.activation.fail(failure)
        if self.chained is not None:
            self.chained = self.chained(frame, event, arg)
            keep(self.activation.thread)
            return self.on_event
        return None

    def _leave(self, frame: FrameType, arg: Any) -> None:
        error, self.error = self.error, None
        if error is None:
            self.activation.finish()
            return
        opcode = frame.f_code.co_code[frame.f_lasti]
        left = arg is None and opcode != _RETURN
        self.activation.finish(error if left and isinstance(error, BaseException) else None)


class SettraceTracer:
    """See :class:`tensorlens.lines.tracer.Tracer`."""

    mechanism = "sys.settrace"

    def __init__(self, watched: Watched, threads: Threads) -> None:
        self._watched = watched
        self._threads = threads

    def watch(self, code: CodeType) -> None:
        """Nothing to do: the trace function asks at every call."""

    def unwatch(self, code: CodeType) -> None:
        """Nothing to do: the trace function asks at every call."""

    def enable(self, thread: ThreadState) -> None:
        """Install our trace function in the calling thread, before the one that is there."""
        thread.previous = sys.gettrace()
        if thread.previous is not None:
            thread.ours = self._chaining_trace(thread)
        else:
            if thread.plain is None:
                thread.plain = self._plain_trace(thread)
            thread.ours = thread.plain
        sys.settrace(thread.ours)

    def disable(self, thread: ThreadState) -> str | None:
        """Put back the trace function that was there."""
        previous, thread.previous = thread.previous, None
        current = sys.gettrace()
        if current is thread.ours:
            sys.settrace(previous)
            return None
        if current is None:
            return "something removed the trace function: lines that ran after it are missing"
        name = getattr(current, "__qualname__", type(current).__qualname__)
        return f"another tracer ({name}) took over: lines that ran after it are missing"

    def adopt(self, thread: ThreadState, activation: Activation, frame: object) -> None:
        """Trace a frame that is running already, from its next line on."""
        assert isinstance(frame, FrameType)
        activation.enter()
        local = LocalTrace(activation)
        local.chained = frame.f_trace
        frame.f_trace = local.on_event

    def release(self, activation: Activation, frame: object) -> None:
        """Give the frame its own trace function back."""
        assert isinstance(frame, FrameType)
        local = getattr(frame.f_trace, "__self__", None)
        if isinstance(local, LocalTrace) and local.activation is activation:
            frame.f_trace = local.chained

    def _plain_trace(self, thread: ThreadState) -> Trace:
        knows = self._watched.knows

        # asked at every call of any Python function while profiled code runs
        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            accounts = knows(id(frame.f_code))
            if accounts is None:
                return None
            local = self._enter(thread, frame, accounts)
            return local.on_event if local is not None else None

        return trace

    def _chaining_trace(self, thread: ThreadState) -> Trace:
        knows = self._watched.knows

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            accounts = knows(id(frame.f_code))
            local = None if accounts is None else self._enter(thread, frame, accounts)
            chained = None
            if thread.previous is not None:
                chained = thread.previous(frame, event, arg)
                keep(thread)
            if local is None:
                return chained
            local.chained = chained
            return local.on_event

        return trace

    def _enter(
        self, thread: ThreadState, frame: FrameType, accounts: tuple[Account, ...]
    ) -> LocalTrace | None:
        local = getattr(frame.f_trace, "__self__", None)
        try:
            if isinstance(local, LocalTrace):  # a generator or coroutine goes on
                local.activation.thread = thread
                local.activation.resume(frame.f_lineno)
                return local
            activation = open_activation(frame.f_code, accounts, thread)
            return LocalTrace(activation) if activation is not None else None
        except Exception as failure:
            for account in accounts:
                account.failure = repr(failure)
            return None


def keep(thread: ThreadState) -> None:
    """Stay installed after calling the other tool's trace function.

    coverage's C tracer installs itself anew whenever it is called from Python, and pdb's
    ``continue`` removes every trace function of the thread.
    """
    current = sys.gettrace()
    if current is not thread.ours and thread.depth:
        if current is None:
            thread.previous = None
        sys.settrace(thread.ours)
