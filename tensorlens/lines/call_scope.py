"""Begins and ends the measuring of each call of a decorated function."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from tensorlens.lines.functions import ProfiledFunction, compile_marker
from tensorlens.lines.tracing.accounting import Activation, Switch, note_failure
from tensorlens.lines.tracing.engine import Engine
from tensorlens.lines.tracing.threads import ThreadState
from tensorlens.lines.tracing.tracer import original

CallEnded = Callable[[ProfiledFunction, BaseException | None], None]


class ScopeState(NamedTuple):
    """State that :meth:`CallScope.leave` must undo."""

    thread: ThreadState
    height: int
    whole: Activation | None
    """That of a function whose lines are compiled away: no tracer ends it."""


class UnmeasuredScope:
    """The region around a wrapped function that was pickled by value into another process."""

    def target(self, function: Any) -> Any:
        """Return what to call: ``function`` itself."""
        return function

    def enter(self, *_: Any) -> None:
        """Do nothing."""

    leave = over = mark_traced = mark_compiled = enter


class CallScope:
    """The region around a wrapped function, whose call begins and ends in it."""

    def __init__(
        self,
        engine: Engine,
        switch: Switch,
        entry: ProfiledFunction,
        call_ended: CallEnded,
        settle: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._switch = switch
        self._entry = entry
        self._call_ended = call_ended
        self._settle = settle
        self._targets: dict[int, Any] = {}
        self.mark_compiled = compile_marker(entry)

    def __reduce__(self) -> tuple[type[UnmeasuredScope], tuple[()]]:
        # cloudpickle sends a function of __main__ with its closure: the profiler stays here
        return UnmeasuredScope, ()

    def enter(self) -> ScopeState | None:
        """Switch on; a function whose lines are compiled away is measured as a whole."""
        try:
            return self._enter()
        except Exception as failure:
            note_failure((self._entry.account,), "a call", failure)
            return None

    def target(self, function: Any) -> Any:
        """Return what to call in place of ``function``: one that reports its lines."""
        if id(function) not in self._targets:
            self._targets[id(function)] = self._twin_of(function)
        return self._targets[id(function)]

    def leave(self, entered: ScopeState | None, error: BaseException | None) -> None:
        """Switch off."""
        try:
            thread = self._engine.threads.current() if entered is None else entered.thread
        except Exception as failure:
            # the counters are not to be had: nothing was switched on
            note_failure((self._entry.account,), "a call", failure)
            return
        interrupted = thread.interrupted or isinstance(error, KeyboardInterrupt)
        thread.interrupted = True  # until all is undone: one more interrupt may end it half way
        if entered is not None:
            _, height, whole = entered
            self._switch.off()
            if height:
                thread.give_back(height)
            try:
                if whole is not None and (whole.start is not None or error is not None):
                    whole.finish(error)
            except Exception as failure:
                note_failure((self._entry.account,), "a line", failure)
            finally:
                thread.depth -= 1
                if len(thread.stack) > height:
                    thread.unwind(height)
        thread.interrupted = interrupted

    def mark_traced(self) -> None:
        """Note that the call only builds a graph."""
        self._entry.account.traced += 1

    def over(self, error: BaseException | None) -> None:
        """A call has ended."""
        if error is not None:
            self._engine.explain(error)
        try:
            self._call_ended(self._entry, error)
        except Exception as failure:
            note_failure((self._entry.account,), "a call", failure)

    def _enter(self) -> ScopeState:
        self._settle()
        thread = self._engine.enable()
        self._switch.on()
        height = len(thread.stack)
        if height:
            thread.lend(height)
        whole = None
        if self._entry.compiler is not None:
            account = self._entry.account
            whole = Activation(account.code, (account,), thread)
            whole.enter()
            try:
                whole.line(self._entry.first_line)
            except Exception as failure:
                whole.fail(failure)
        return ScopeState(thread, height, whole)

    def _twin_of(self, function: Any) -> Any:
        account = self._entry.account
        if type(function) is not FunctionType or original(function.__code__) is not account.code:
            return function
        try:
            return self._engine.tracer.source.twin(function, account.code)
        except Exception as failure:
            note_failure((account,), "a call", failure)
            return function
