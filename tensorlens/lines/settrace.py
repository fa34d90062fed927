"""Line events before Python 3.12: ``sys.settrace``, only while profiled code is running.

The trace function of a debugger or of coverage that is there already keeps getting its events:
ours calls it. One that takes ``sys.settrace`` over while profiled code runs (``breakpoint()``)
is given way to, and the report says so.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from tensorlens.lines.accounting import Account, Activation, is_failure, note_failure, one_line
from tensorlens.lines.threads import Threads, ThreadState
from tensorlens.lines.tracer import Watched, open_activation

Trace = Callable[[FrameType, str, Any], Any]

_RETURN = dis.opmap["RETURN_VALUE"]
_YIELD = dis.opmap["YIELD_VALUE"]
_SWALLOWED = (StopIteration, StopAsyncIteration)
"""Seen as an exception event wherever a loop or an await comes to its end."""


_REMOVED = "something removed the trace function: lines that ran after it are missing"


class LocalTrace:
    """The trace function of one profiled frame."""

    __slots__ = ("activation", "chained", "error", "handled", "raised_at")

    def __init__(self, activation: Activation) -> None:
        self.activation = activation
        self.chained: Any = None
        """The local trace function of the debugger or coverage tool beside us."""
        self.error: BaseException | None = None
        """The exception that may be leaving the frame; kept until the next line only."""
        self.handled: str | None = None
        """The text of the exception that an ``except`` or ``finally`` of the frame deals with."""
        self.raised_at = 0

    def on_event(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        """Take an event of the frame; nothing that fails here may reach the program.

        CPython keeps a frame's trace function when it answers None (sysmodule.c,
        trace_trampoline); that spares a reference from us to our own method, and so a cycle
        for the garbage collector at every profiled call.
        """
        try:
            if event == "line":
                if self.error is not None or self.handled is not None:
                    self._deal_with_error()
                self.activation.line(frame.f_lineno)
            elif event == "return":
                self._leave(frame, arg)
            elif event == "exception" and not issubclass(arg[0], _SWALLOWED):
                self.error = arg[1]
                self.raised_at = frame.f_lineno
        except Exception as failure:
            self.activation.fail(failure)
        if self.chained is not None:
            self.chained = self.chained(frame, event, arg)
            keep(self.activation.thread)
            return self.on_event
        return None

    def _deal_with_error(self) -> None:
        # not the exception itself, which would keep all its frames alive with what they hold
        handled = self.error or sys.exc_info()[1]
        self.error = None
        self.handled = None
        if handled is not None and is_failure(handled):
            self.handled = one_line(handled)

    def _leave(self, frame: FrameType, arg: Any) -> None:
        error, self.error = self.error, None
        activation = self.activation
        if arg is not None or (error is None and self.handled is None):
            activation.finish()
            return
        opcode = frame.f_code.co_code[frame.f_lasti]
        if opcode == _RETURN or (opcode == _YIELD and error is None):
            activation.finish()
        elif isinstance(error, BaseException):
            activation.finish(error)
        else:  # it was raised again when the finally was over, and of that there is no event
            activation.finish()
            activation.mark_raised(self.raised_at, self.handled or "")


class SettraceTracer:
    """See :class:`tensorlens.lines.tracer.Tracer`."""

    def __init__(self, watched: Watched, threads: Threads) -> None:
        self._watched = watched
        self._threads = threads
        self._enabled: set[int] = set()
        """The threads that are in an enabled region, by identity."""
        self._for_threads: Any = None
        """What ``threading`` installed in new threads before us."""

    def watch(self, code: CodeType) -> None:
        """Nothing to do: the trace function asks at every call."""

    def unwatch(self, code: CodeType) -> None:
        """Nothing to do: the trace function asks at every call."""

    def enable(self, thread: ThreadState) -> None:
        """Install our trace function in the calling thread, before the one that is there."""
        with thread.lock:
            installed = threading.gettrace()
            if installed != self._begin_thread:
                self._for_threads = installed
                threading.settrace(self._begin_thread)
            self._enabled.add(thread.ident)
        self._install(thread)

    def renew(self, thread: ThreadState) -> None:
        """Install ours again where an interrupt or a debugger's ``continue`` removed it."""
        if sys.gettrace() is None:
            thread.trouble = _REMOVED
            sys.settrace(thread.ours)

    def disable(self, thread: ThreadState) -> str | None:
        """Put back the trace function that was there; frames that still run are let go."""
        trouble, thread.trouble = thread.trouble, None
        with thread.lock:
            self._enabled.discard(thread.ident)
            if not self._enabled and threading.gettrace() == self._begin_thread:
                threading.settrace(self._for_threads)
        thread.unwind(thread.base)
        previous, thread.previous = thread.previous, None
        current = sys.gettrace()
        if current is thread.ours:
            sys.settrace(previous)
            return trouble
        if current is None:
            return _REMOVED
        name = getattr(current, "__qualname__", type(current).__qualname__)
        return f"another tracer ({name}) took over: lines that ran after it are missing"

    def _install(self, thread: ThreadState) -> None:
        thread.base = len(thread.stack)
        previous = sys.gettrace()
        # ours is still there where an interrupt cut a call short
        thread.previous = None if previous is thread.ours else previous
        if thread.previous is not None:
            thread.ours = self._chaining_trace(thread)
        else:
            if thread.plain is None:
                thread.plain = self._plain_trace(thread)
            thread.ours = thread.plain
        sys.settrace(thread.ours)

    def _begin_thread(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Trace a thread that starts while profiled code runs, until no more of that does."""
        sys.settrace(self._for_threads)
        thread = self._threads.current()
        self._install(thread)
        thread.depth += 1
        traced = thread.ours

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            # a region of this thread's own may outlast those that it was begun in
            if self._enabled or thread.depth > 1:
                return traced(frame, event, arg)
            thread.depth -= 1
            sys.settrace(thread.previous)
            return None if thread.previous is None else thread.previous(frame, event, arg)

        thread.ours = trace
        sys.settrace(trace)
        return trace(frame, event, arg)

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
            if activation is None:
                return None
            activation.frame = id(frame)
            return LocalTrace(activation)
        except Exception as failure:
            note_failure(accounts, "a call", failure)
            return None


def keep(thread: ThreadState) -> None:
    """Stay installed after calling the other tool's trace function.

    coverage's C tracer installs itself anew whenever it is called from Python, and pdb's
    ``continue`` removes every trace function of the thread.
    """
    current = sys.gettrace()
    if current is not thread.ours and thread.depth:
        thread.previous = current
        sys.settrace(thread.ours)
