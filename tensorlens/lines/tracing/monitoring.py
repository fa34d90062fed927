"""Line events from Python 3.12 on: ``sys.monitoring`` (PEP 669).

Events are set on the profiled code objects alone, so that everything else runs at full speed and
the tools of others (debuggers, coverage, cProfile, line_profiler) are not disturbed: each has
its own tool id. Unwinding by an exception and ``throw()`` cannot be asked for per code object;
those two are heard for the whole program, and only they.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType

from tensorlens.errors import ProfileError
from tensorlens.lines.tracing.tracer import EventSource, Tracer

if sys.version_info >= (3, 12):
    _monitoring = sys.monitoring
    _EVENTS = _monitoring.events
    _LOCAL = (
        _EVENTS.LINE | _EVENTS.PY_START | _EVENTS.PY_RESUME | _EVENTS.PY_RETURN | _EVENTS.PY_YIELD
    )
    _GLOBAL = _EVENTS.PY_UNWIND | _EVENTS.PY_THROW

    class Monitoring(EventSource):
        """See :class:`tensorlens.lines.tracing.tracer.EventSource`."""

        def __init__(self, tracer: Tracer) -> None:
            self._tool: int | None = None
            self._watching = 0
            self._callbacks: dict[int, Callable[..., None]] = {
                _EVENTS.LINE: tracer.on_line,
                _EVENTS.PY_START: tracer.on_start,
                _EVENTS.PY_RESUME: tracer.on_resume,
                _EVENTS.PY_RETURN: tracer.on_return,
                _EVENTS.PY_YIELD: tracer.on_yield,
                _EVENTS.PY_UNWIND: tracer.on_unwind,
                _EVENTS.PY_THROW: tracer.on_throw,
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
            self._watching -= 1
            if not self._watching:
                tool, self._tool = self._tool, None
                _monitoring.set_events(tool, 0)
                for event in self._callbacks:
                    _monitoring.register_callback(tool, event, None)
                _monitoring.free_tool_id(tool)

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
