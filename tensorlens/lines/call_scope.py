"""What happens around each call of a decorated function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from tensorlens.lines import recursion
from tensorlens.lines.accounting import Activation, Switch, note_failure
from tensorlens.lines.engine import Engine
from tensorlens.lines.failures import explain
from tensorlens.lines.functions import ProfiledFunction, compile_marker
from tensorlens.lines.threads import ThreadState

if sys.version_info < (3, 12):
    from tensorlens.lines.instrumentation import make_twin
else:

    def make_twin(function: FunctionType, threads: Any) -> FunctionType | None:
        """From 3.12 on the interpreter itself reports the lines of chosen code for nothing."""
        return None


CallEnded = Callable[[ProfiledFunction, BaseException | None], None]


class Entered(NamedTuple):
    """What :meth:`AroundCall.leave` must undo."""

    thread: ThreadState
    height: int
    traced: bool
    own: Activation | None
    """An activation that no tracer will end: of a twin, or of a function compiled away."""


class Unmeasured:
    """The region around a wrapped function that was pickled by value into another process."""

    def enter(self) -> None:
        """Do nothing."""

    def enter_call(self, function: Any) -> tuple[None, Any]:
        """Let ``function`` itself run."""
        return None, function

    def leave(self, entered: None, error: BaseException | None) -> None:
        """Do nothing."""

    def over(self, error: BaseException | None) -> None:
        """Do nothing."""

    def mark_compiled(self) -> bool:
        """Do nothing."""
        return True

    def mark_traced(self) -> None:
        """Do nothing."""


class AroundCall:
    """The region around a wrapped function; see :class:`tensorlens.lines.wrapping.Region`."""

    def __init__(
        self,
        engine: Engine,
        switch: Switch,
        entry: ProfiledFunction,
        call_ended: CallEnded,
        all_calls_are_wrapped: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._switch = switch
        self._entry = entry
        self._call_ended = call_ended
        self._all_calls_are_wrapped = all_calls_are_wrapped
        self._twins: dict[int, FunctionType | None] = {}
        self.mark_compiled = compile_marker(entry)

    def __reduce__(self) -> tuple[type[Unmeasured], tuple[()]]:
        # cloudpickle sends a function of __main__ with its closure: the profiler stays here
        return Unmeasured, ()

    def enter(self) -> Entered | None:
        """Switch on; a function whose lines are compiled away is measured as a whole."""
        try:
            return self._enter_traced()
        except Exception as failure:
            note_failure((self._entry.account,), "a call", failure)
            return None

    def enter_call(self, function: Any) -> tuple[Entered | None, Any]:
        """Switch on; return also the function's twin, if that can take its place this time."""
        try:
            twin = self._twin_of(function)
            if twin is not None:
                return self._enter_twin(), twin
        except Exception as failure:
            note_failure((self._entry.account,), "a call", failure)
            return None, function
        return self.enter(), function

    def leave(self, entered: Entered | None, error: BaseException | None) -> None:
        """Switch off."""
        try:
            thread = self._engine.threads.current()
        except Exception as failure:
            # the counters are not to be had: nothing was switched on
            note_failure((self._entry.account,), "a call", failure)
            return
        interrupted = thread.interrupted or isinstance(error, KeyboardInterrupt)
        thread.interrupted = True  # until all is undone: one more interrupt may end it half way
        if entered is not None:
            _, height, traced, own = entered
            self._switch.off()
            recursion.give_back(thread, height)
            try:
                if own is not None and (own.start is not None or error is not None):
                    own.finish(error)
            except Exception as failure:
                note_failure((self._entry.account,), "a line", failure)
            finally:
                if traced:
                    self._engine.disable((self._entry.account,))
                if len(thread.stack) > height:
                    thread.unwind(height)
        thread.interrupted = interrupted

    def mark_traced(self) -> None:
        """Note that the call only builds a graph."""
        self._entry.account.traced += 1

    def over(self, error: BaseException | None) -> None:
        """A call has ended."""
        explain(error, self._engine)
        try:
            self._call_ended(self._entry, error)
        except Exception as failure:
            note_failure((self._entry.account,), "a call", failure)

    def _enter_traced(self) -> Entered:
        thread = self._engine.enable()
        self._switch.on()
        height = len(thread.stack)
        recursion.lend(thread)
        whole = None
        if self._entry.compiler is not None:
            whole = self._activation(thread)
            try:
                whole.line(self._entry.first_line)
            except Exception as failure:
                whole.fail(failure)
        return Entered(thread, height, True, whole)

    def _enter_twin(self) -> Entered:
        thread = self._engine.ready()
        self._switch.on()
        height = len(thread.stack)
        recursion.lend(thread)
        return Entered(thread, height, False, self._activation(thread))

    def _activation(self, thread: ThreadState) -> Activation:
        account = self._entry.account
        activation = Activation(account.code, (account,), thread)
        activation.enter()
        return activation

    def _twin_of(self, function: Any) -> FunctionType | None:
        """Return the twin unless a debugger is on, or someone else wants these lines too."""
        account = self._entry.account
        if type(function) is not FunctionType or function.__code__ is not account.code:
            return None
        if self._entry.compiler is not None or not self._engine.watched.is_alone(account):
            return None
        if not self._all_calls_are_wrapped():  # a function that was only added needs the tracer
            return None
        tracing = sys.gettrace()
        if tracing is not None and tracing is not self._engine.threads.current().ours:
            return None
        key = id(function)
        if key not in self._twins:
            self._twins[key] = make_twin(function, self._engine.threads)
        return self._twins[key]
