"""Line events from Python 3.12 on: ``sys.monitoring`` (PEP 669).

Events are set on the profiled code objects alone, so that everything else runs at full speed and
the tools of others (debuggers, coverage, cProfile, line_profiler) are not disturbed: each has
its own tool id. Unwinding by an exception and ``throw()`` cannot be asked for per code object;
those two are heard for the whole program, and only they.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType

from tensorlens.errors import ProfileError
from tensorlens.lines.accounting import Activation, note_failure
from tensorlens.lines.threads import Threads, ThreadState
from tensorlens.lines.tracer import Watched, open_activation

if sys.version_info >= (3, 12):
    _monitoring = sys.monitoring
    _EVENTS = _monitoring.events
    _LOCAL = (
        _EVENTS.LINE | _EVENTS.PY_START | _EVENTS.PY_RESUME | _EVENTS.PY_RETURN | _EVENTS.PY_YIELD
    )
    _GLOBAL = _EVENTS.PY_UNWIND | _EVENTS.PY_THROW

    def _line_callback(threads: Threads) -> Callable[[CodeType, int], None]:
        local, frame_at = threads.local, sys._getframe

        def on_line(code: CodeType, lineno: int) -> None:
            try:
                stack = local.state.stack
            except AttributeError:  # nothing was profiled in this thread so far
                return
            if stack and stack[-1].frame == id(frame_at(1)):
                try:
                    stack[-1].line(lineno)
                except Exception as failure:
                    stack[-1].fail(failure)

        return on_line

    class MonitoringTracer:
        """See :class:`tensorlens.lines.tracer.Tracer`."""

        def __init__(self, watched: Watched, threads: Threads) -> None:
            self._knows = watched.knows
            self._threads = threads
            self._tool: int | None = None
            self._watching = 0
            self._suspended: dict[int, Activation] = {}
            """Frames that yielded, by identity; a frame that starts anew at one takes its place."""
            self._callbacks: dict[int, Callable[..., None]] = {
                _EVENTS.LINE: _line_callback(threads),
                _EVENTS.PY_START: self._on_start,
                _EVENTS.PY_RESUME: self._on_resume,
                _EVENTS.PY_RETURN: self._on_return,
                _EVENTS.PY_YIELD: self._on_yield,
                _EVENTS.PY_UNWIND: self._on_unwind,
                _EVENTS.PY_THROW: self._on_throw,
            }

        def watch(self, code: CodeType) -> None:
            """Set the line events of ``code``.

            Raises:
                ProfileError: other tools hold every tool id.
            """
            if self._tool is None:
                self._tool = self._take_tool()
                _monitoring.set_events(self._tool, _GLOBAL)
            self._watching += 1
            _monitoring.set_local_events(self._tool, code, _LOCAL)

        def unwatch(self, code: CodeType) -> None:
            """Clear the line events of ``code``; the tool id goes back after the last one."""
            if self._tool is None:
                return
            _monitoring.set_local_events(self._tool, code, 0)
            for key, activation in list(self._suspended.items()):
                if activation.code is code:
                    del self._suspended[key]
            self._watching -= 1
            if not self._watching:
                tool, self._tool = self._tool, None
                _monitoring.set_events(tool, 0)
                for event in self._callbacks:
                    _monitoring.register_callback(tool, event, None)
                _monitoring.free_tool_id(tool)

        def enable(self, thread: ThreadState) -> None:
            """Nothing to do: the events belong to the code, not to a thread."""

        def renew(self, thread: ThreadState) -> None:
            """Nothing to do: the events belong to the code, not to a thread."""

        def disable(self, thread: ThreadState) -> str | None:
            """Nothing to do: the events belong to the code, not to a thread."""
            return None

        def adopt(self, thread: ThreadState, activation: Activation, frame: object) -> None:
            """Report a running frame from its next line on."""
            activation.frame = id(frame)
            activation.enter()

        def release(self, activation: Activation, frame: object) -> None:
            """Stop what :meth:`adopt` began."""

        def _take_tool(self) -> int:
            # 0, 1, 2 and 5 are what debuggers, coverage, profilers and optimisers reserve
            for tool in (4, 3, 2):
                if _monitoring.get_tool(tool) is None:
                    _monitoring.use_tool_id(tool, "tensorlens")
                    for event, callback in self._callbacks.items():
                        _monitoring.register_callback(tool, event, callback)
                    return tool
            raise ProfileError(
                "no sys.monitoring tool id is free: stop another profiler or debugger first"
            )

        def _running(self, frame: FrameType) -> Activation | None:
            stack = self._threads.current().stack
            if stack and stack[-1].frame == id(frame):
                return stack[-1]
            return None

        def _on_start(self, code: CodeType, offset: int) -> None:
            accounts = self._knows(id(code))
            if accounts is None:
                return
            frame = id(sys._getframe(1))
            self._suspended.pop(frame, None)
            try:
                activation = open_activation(code, accounts, self._threads.current())
                if activation is not None:
                    activation.frame = frame
            except Exception as failure:
                note_failure(accounts, "a call", failure)

        def _on_resume(self, code: CodeType, offset: int) -> None:
            self._go_on(code, sys._getframe(1))

        def _on_throw(self, code: CodeType, offset: int, error: BaseException) -> None:
            if self._knows(id(code)) is not None:
                self._go_on(code, sys._getframe(1))

        def _go_on(self, code: CodeType, frame: FrameType) -> None:
            activation = self._suspended.pop(id(frame), None)
            if activation is not None and activation.code is code:
                try:
                    activation.thread = self._threads.current()
                    activation.resume(frame.f_lineno)
                except Exception as failure:
                    activation.fail(failure)

        def _on_yield(self, code: CodeType, offset: int, value: object) -> None:
            frame = sys._getframe(1)
            activation = self._running(frame)
            if activation is not None:
                self._suspended[id(frame)] = activation
                self._close(activation, None)

        def _on_return(self, code: CodeType, offset: int, value: object) -> None:
            activation = self._running(sys._getframe(1))
            if activation is not None:
                self._close(activation, None)

        def _on_unwind(self, code: CodeType, offset: int, error: BaseException) -> None:
            if self._knows(id(code)) is not None:
                activation = self._running(sys._getframe(1))
                if activation is not None:
                    self._close(activation, error)

        @staticmethod
        def _close(activation: Activation, error: BaseException | None) -> None:
            try:
                activation.finish(error)
            except Exception as failure:
                activation.fail(failure)
