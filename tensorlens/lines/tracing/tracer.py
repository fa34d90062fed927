"""From events of watched code to activations.

Where the events come from depends on the interpreter: hooks in the function's own bytecode
(:mod:`~tensorlens.lines.tracing.instrumentation`, Python 3.11) or ``sys.monitoring``
(:class:`Monitoring`, 3.12 and later). Both call the functions in
:class:`Tracer` from the frame that the event is of.
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
    """Calls the tracer at the events of watched code; here, where they are of code objects."""

    def watch(self, code: CodeType) -> None:
        """Start to report the events of ``code``."""

    def unwatch(self, code: CodeType) -> None:
        """Stop to report them."""

    def install(self, function: FunctionType, code: CodeType) -> None:
        """Start to report those of a function, wherever it is called."""

    def uninstall(self, function: FunctionType, code: CodeType) -> None:
        """Undo one :meth:`install`."""

    def twin(self, function: FunctionType, code: CodeType) -> FunctionType:
        """Return what a wrapper calls in place of ``function``."""
        return function

    def exchange(self, code: CodeType, wanted: Callable[[CodeType], bool]) -> CodeType:
        """Return what to execute in place of ``code``, for events of the wanted code in it."""
        return code

    def adopt(self, activation: Activation, frame: FrameType) -> str | None:
        """Report the lines of a frame that runs, from its next line on; return why not, or None."""
        return None

    def release(self, activation: Activation, frame: FrameType) -> str | None:
        """Stop what :meth:`adopt` began; return what went wrong meanwhile, or None."""
        return None


class Hook(functools.partial[None]):
    """A function of the tracer and the code that it is told of; nothing in another process."""

    def __reduce__(self) -> Any:
        return Hook, (_nothing,)


def _nothing(*_: Any) -> None:
    """Stand for the tracer where a function was pickled by value."""


def original(code: CodeType) -> CodeType:
    """Return the code that a function or a frame with ``code`` has when nobody profiles it."""
    hooks = (constant for constant in code.co_consts if type(constant) is Hook)
    return next((hook.args[0] for hook in hooks if hook.args), code)


class WatchedCode:
    """The profiled code objects and the accounts that want their lines.

    Keyed by identity: equal code objects of two functions are two functions, and the hash of a
    code object costs microseconds.
    """

    def __init__(self) -> None:
        self._accounts: dict[int, tuple[Account, ...]] = {}
        self.knows = self._accounts.get
        """``knows(id(code))``: the accounts of a code object or None; the hot path's question."""

    def add(self, account: Account, code: CodeType) -> None:
        """Add an account of some code."""
        self._accounts[id(code)] = (*self._accounts.get(id(code), ()), account)

    def remove(self, account: Account, code: CodeType) -> bool:
        """Undo one :meth:`add`; return True if nobody watches the code any more."""
        key = id(code)
        rest = [*self._accounts.get(key, ())]
        # a block of a recursive function is there as often as it is open
        with suppress(ValueError):
            rest.remove(account)
        if rest:
            self._accounts[key] = tuple(rest)
        else:
            self._accounts.pop(key, None)
        return not rest

    def all(self) -> list[Account]:
        """Return every account."""
        # other threads add some meanwhile
        return [account for accounts in list(self._accounts.values()) for account in accounts]


class Tracer:
    """Opens, advances and ends the activation of each frame of watched code."""

    def __init__(self, engine: Engine) -> None:
        self.watched = engine.watched
        self.thread = engine.thread
        self._local = engine.local
        self.on_line = self._line_callback(moved=False)
        """``on_line(code, lineno)``: the frame starts to execute a line."""
        self.on_moved = self._line_callback(moved=True)
        """The same, if it is not the line that the frame is on."""
        self._suspended: dict[int, Activation] = {}
        """Frames that yielded, by identity; a frame that starts anew at one takes its place."""
        self.source = _event_source(self)

    def unwatch(self, code: CodeType) -> None:
        """Stop to report the lines of ``code``."""
        self.source.unwatch(code)
        for key, activation in list(self._suspended.items()):
            if activation.code is code:
                del self._suspended[key]

    def on_start(self, code: CodeType, offset: int) -> None:
        """A frame of ``code`` starts to run."""
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
        """A frame goes on after a yield or an await."""
        self._go_on(code, sys._getframe(1))

    def on_throw(self, code: CodeType, offset: int, error: BaseException) -> None:
        """A frame goes on by an exception; asked for code that is not watched, too."""
        if self.watched.knows(id(code)) is not None:
            self._go_on(code, sys._getframe(1))

    def on_yield(self, code: CodeType, offset: int, value: object = None) -> None:
        """A frame yields or awaits."""
        frame = sys._getframe(1)
        activation = self._running(code, frame)
        if activation is not None:
            self._suspended[id(frame)] = activation
            _close(activation, None)

    def on_return(self, code: CodeType, offset: int, value: object = None) -> None:
        """A frame returns."""
        activation = self._running(code, sys._getframe(1))
        if activation is not None:
            _close(activation, None)

    def on_unwind(self, code: CodeType, offset: int, error: BaseException) -> None:
        """An exception leaves a frame; asked for code that is not watched, too."""
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
                self._go_on(code, frame)
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
        self._go_on(code, frame)
        for at in range(len(stack) - 1, -1, -1):
            if stack[at].frame == id(frame):
                # what it called had no room on the stack to report its end
                stack[at].thread.unwind(at + 1)
                return stack[at]
        return None

    def _go_on(self, code: CodeType, frame: FrameType) -> None:
        """Resume the frame's activation; throw() into what it delegates to has no event."""
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
    """Return the activation of a frame that starts, or None if no account wants it now."""
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
