"""The tracer: turns events of watched code into calls of activations.

Events come from hooks in the function's own bytecode on Python 3.11
(:mod:`~tensorlens.lines.tracing.instrumentation`), from ``sys.monitoring`` on 3.12 and later
(:class:`Monitoring`). Both call the methods of :class:`Tracer` from the frame of the event.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from tensorlens.errors import ProfileError
from tensorlens.frameworks.compilers import compiler
from tensorlens.lines.tracing.accounts import Account
from tensorlens.lines.tracing.activation import Activation, note_failure

if TYPE_CHECKING:
    from tensorlens.lines.tracing.engine import Engine, ThreadState


class EventSource:
    """Base of the sources of events; the defaults suit events that are switched by code object."""

    def watch(self, code: CodeType) -> None:
        """Start reporting the events of ``code``."""

    def unwatch(self, code: CodeType) -> None:
        """Stop reporting the events of ``code``."""

    def install(self, function: FunctionType, code: CodeType) -> None:
        """Start reporting the events of a function, wherever it is called."""

    def uninstall(self, function: FunctionType, code: CodeType) -> None:
        """Undo one :meth:`install`."""

    def twin(self, function: FunctionType, code: CodeType) -> FunctionType:
        """Return the function for a wrapper to call in place of ``function``."""
        return function

    def exchange(self, code: CodeType, wanted: Callable[[CodeType], bool]) -> CodeType:
        """Return the code to execute in place of ``code``, with events of the wanted code in it."""
        return code

    def adopt(self, activation: Activation, frame: FrameType) -> str | None:
        """Report the lines of a running frame from its next line on; return why not, or None."""
        return None

    def release(self, activation: Activation, frame: FrameType) -> str | None:
        """Undo :meth:`adopt`; return what went wrong meanwhile, or None."""
        return None


class Hook(functools.partial[None]):
    """A tracer callback bound to the original code. In another process it does nothing."""

    def __reduce__(self) -> Any:
        return Hook, (_nothing,)


def _nothing(*_: Any) -> None:
    """Take the place of a callback in another process."""


def original(code: CodeType) -> CodeType:
    """Return the unprofiled code of a function or frame that has ``code``."""
    hooks = (constant for constant in code.co_consts if type(constant) is Hook)
    return next((hook.args[0] for hook in hooks if hook.args), code)


class WatchedCode:
    """The profiled code objects and their accounts.

    Keyed by identity: two functions may have equal code objects, and hashing one costs
    microseconds.
    """

    def __init__(self) -> None:
        self._accounts: dict[int, tuple[Account, ...]] = {}
        self.knows = self._accounts.get
        """``knows(id(code))``: the accounts of a code object, or None; on the hot path."""

    def add(self, account: Account, code: CodeType) -> None:
        """Add an account for ``code``."""
        self._accounts[id(code)] = (*self._accounts.get(id(code), ()), account)

    def remove(self, account: Account, code: CodeType) -> bool:
        """Undo one :meth:`add`; return True if the code has no accounts left."""
        key = id(code)
        rest = [*self._accounts.get(key, ())]
        # a block of a recursive function is in it once per open call
        with suppress(ValueError):
            rest.remove(account)
        if rest:
            self._accounts[key] = tuple(rest)
        else:
            self._accounts.pop(key, None)
        return not rest

    def all(self) -> list[Account]:
        """Return every account."""
        # a copy: other threads add accounts meanwhile
        return [account for accounts in list(self._accounts.values()) for account in accounts]


class Tracer:
    """Receiver of events, which opens, advances and ends the activations of watched frames."""

    def __init__(self, engine: Engine) -> None:
        self.watched = engine.watched
        self.thread = engine.thread
        self._local = engine.local
        self.on_line = self._line_callback(moved=False)
        """``on_line(code, lineno)``, called before a line is executed."""
        self.on_moved = self._line_callback(moved=True)
        """The same, but ignores the line that the frame is on."""
        self._suspended: dict[int, Activation] = {}
        """Frame identity to activation of frames that yielded; a new frame may reuse it."""
        self.source = _event_source(self)

    def unwatch(self, code: CodeType) -> None:
        """Stop reporting the lines of ``code``."""
        self.source.unwatch(code)
        for key, activation in list(self._suspended.items()):
            if activation.code is code:
                del self._suspended[key]

    def on_start(self, code: CodeType, offset: int) -> None:
        """Open an activation as a frame of ``code`` starts."""
        accounts = self.watched.knows(id(code))
        if accounts is None:
            return
        frame = id(sys._getframe(1))
        self._suspended.pop(frame, None)
        try:
            activation = open_activation(code, accounts, self.thread())
            if activation is not None:
                activation.frame = frame
        except Exception as failure:
            note_failure(accounts, "a call", failure)

    def on_resume(self, code: CodeType, offset: int) -> None:
        """Resume the activation after a yield or an await."""
        self._resume(code, sys._getframe(1))

    def on_throw(self, code: CodeType, offset: int, error: BaseException) -> None:
        """Resume the activation as an exception is thrown in; called for unwatched code, too."""
        if self.watched.knows(id(code)) is not None:
            self._resume(code, sys._getframe(1))

    def on_yield(self, code: CodeType, offset: int, value: object = None) -> None:
        """Suspend the activation at a yield or an await."""
        frame = sys._getframe(1)
        activation = self._running(code, frame)
        if activation is not None:
            self._suspended[id(frame)] = activation
            _close(activation, None)

    def on_return(self, code: CodeType, offset: int, value: object = None) -> None:
        """Close the activation as its frame returns."""
        activation = self._running(code, sys._getframe(1))
        if activation is not None:
            _close(activation, None)

    def on_unwind(self, code: CodeType, offset: int, error: BaseException) -> None:
        """Close the activation as an exception leaves its frame; called for unwatched code, too."""
        if self.watched.knows(id(code)) is not None:
            activation = self._running(code, sys._getframe(1))
            if activation is not None:
                _close(activation, error)

    def _line_callback(self, *, moved: bool) -> Callable[[CodeType, int], None]:
        local, frame_at = self._local, sys._getframe

        def on_line(code: CodeType, lineno: int) -> None:
            try:
                stack = local.state.stack
            except AttributeError:  # nothing was profiled in this thread so far
                return
            frame = frame_at(1)
            if not (stack and stack[-1].frame == id(frame)):
                if id(frame) not in self._suspended:
                    return
                self._resume(code, frame)
            top = stack[-1] if stack else None
            if top is not None and top.frame == id(frame):
                try:
                    if not moved or top.lineno != lineno:
                        top.line(lineno)
                except Exception as failure:
                    top.fail(failure)

        return on_line

    def _running(self, code: CodeType, frame: FrameType) -> Activation | None:
        try:
            stack: list[Activation] = self._local.state.stack
        except AttributeError:  # nothing was profiled in this thread so far
            return None
        if stack and stack[-1].frame == id(frame):
            return stack[-1]
        self._resume(code, frame)
        for at in range(len(stack) - 1, -1, -1):
            if stack[at].frame == id(frame):
                # deeper frames had no stack left to report their end
                stack[at].thread.unwind(at + 1)
                return stack[at]
        return None

    def _resume(self, code: CodeType, frame: FrameType) -> None:
        """Resume a suspended frame's activation: throw() through a delegation has no event."""
        activation = self._suspended.pop(id(frame), None)
        if activation is not None and activation.code is code:
            try:
                activation.thread = self.thread()
                activation.resume(activation.lineno)
            except Exception as failure:
                activation.fail(failure)


def open_activation(
    code: CodeType, accounts: tuple[Account, ...], thread: ThreadState
) -> Activation | None:
    """Open the activation of a frame that starts; None if they are off or it builds a graph."""
    if len(accounts) > 1 or not accounts[0].switch.count:
        accounts = tuple(account for account in accounts if account.switch.count)
        if not accounts:
            return None
    if compiler.is_building():
        for account in accounts:
            account.traced += 1
        return None
    activation = Activation(code, accounts, thread)
    activation.enter()
    return activation


def _close(activation: Activation, error: BaseException | None) -> None:
    try:
        activation.finish(error)
    except Exception as failure:
        activation.fail(failure)


def _event_source(tracer: Tracer) -> EventSource:
    if sys.version_info >= (3, 12):
        return Monitoring(tracer)
    from tensorlens.lines.tracing.instrumentation import Instrumentation

    return Instrumentation(tracer)


if sys.version_info >= (3, 12):
    _monitoring = sys.monitoring
    _EVENTS = _monitoring.events
    _LOCAL = (
        _EVENTS.LINE | _EVENTS.PY_START | _EVENTS.PY_RESUME | _EVENTS.PY_RETURN | _EVENTS.PY_YIELD
    )
    _GLOBAL = _EVENTS.PY_UNWIND | _EVENTS.PY_THROW

    class Monitoring(EventSource):
        """Events from ``sys.monitoring``."""

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
            """Switch the events of ``code`` on.

            Raises:
                ProfileError: other tools hold every tool id.
            """
            if self._tool is None:
                self._tool = self._take_tool()
                _monitoring.set_events(self._tool, _GLOBAL)
            self._watching += 1
            _monitoring.set_local_events(self._tool, code, _LOCAL)

        def unwatch(self, code: CodeType) -> None:
            """Switch the events of ``code`` off, and free the tool id after the last code."""
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
            # 0, 1, 2 and 5 are reserved for debuggers, coverage, profilers and optimisers
            for tool in (4, 3, 2):
                if _monitoring.get_tool(tool) is None:
                    _monitoring.use_tool_id(tool, "tensorlens")
                    for event, callback in self._callbacks.items():
                        _monitoring.register_callback(tool, event, callback)
                    return tool
            raise ProfileError(
                "no sys.monitoring tool id is free: stop another profiler or debugger first"
            )
