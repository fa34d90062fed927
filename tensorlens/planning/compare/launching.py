"""Trials in processes of their own, seen from the one that asks."""

from __future__ import annotations

import contextlib
import pickle
import signal
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.trials.trial import FAILED, Measured, Result, Trial, Trouble
from tensorlens.planning.compare.child import FORKS, Began, Ended
from tensorlens.planning.processes import Child, ChildEnded, kill_group
from tensorlens.records.traces import Trace

_SERVER = "tensorlens.planning.compare.child"
_current: ContextVar[Launcher | None] = ContextVar("_current", default=None)


def run_trial(trial: Trial) -> Result:
    """Run one trial, in any process or thread: what an executor is given.

    Raises:
        UsageError: the trial cannot be pickled.
    """
    with Launcher() as launcher:
        return launcher.run(trial)


@contextlib.contextmanager
def shared_launcher() -> Iterator[Launcher]:
    """Give the launcher of the ``with`` around this one, or a new one: it imports frameworks once.

    What is launched in other threads has launchers of its own.
    """
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    with Launcher() as launcher:
        token = _current.set(launcher)
        try:
            yield launcher
        finally:
            _current.reset(token)


class Launcher:
    """Runs trials one after the other, each in a new process; from ``with`` to its end."""

    def __init__(self) -> None:
        self._nurseries: dict[tuple[tuple[str, str], ...], _Nursery] = {}

    def run(self, trial: Trial) -> Result:
        """Run a trial and return what it came to; whatever becomes of its process, an answer says.

        Raises:
            UsageError: the trial cannot be pickled.
        """
        result = self._answer(trial)
        assert not isinstance(result, Trace)
        return result

    def trace(self, trial: Trial) -> Trace | Trouble:
        """Trace the step of a trial that asks for that, and return what it came to.

        Raises:
            UsageError: the trial cannot be pickled.
        """
        result = self._answer(trial)
        assert not isinstance(result, Measured)
        return result

    def _answer(self, trial: Trial) -> Result | Trace:
        try:
            request = pickle.dumps(trial, protocol=5)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise UsageError(
                f"option {trial.name!r} cannot go to another process: {reason}"
            ) from None
        key = tuple(sorted(trial.environment.items()))
        nursery = self._nurseries.pop(key, None) or _Nursery(trial)
        try:
            result = nursery.run(trial, request)
        except BaseException:
            nursery.kill()
            raise
        if nursery.is_over or not FORKS:
            nursery.kill()
        else:
            self._nurseries[key] = nursery
        return result

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._nurseries:
            self._nurseries.popitem()[1].kill()


class _Nursery:
    """The process that trials of one environment are forked from."""

    def __init__(self, trial: Trial) -> None:
        self.is_over = False
        self._pid: int | None = None
        self._late = False
        self._child = Child(_SERVER, trial.environment, is_apart=True)

    def run(self, trial: Trial, request: bytes) -> Result | Trace:
        self._pid, self._late = None, False
        result: Result | Trace | None = None
        timer = threading.Timer(trial.timeout or 0, self._out_of_time)
        timer.daemon = True
        if trial.timeout is not None:
            timer.start()
        try:
            self._child.ask(request)
            while True:
                message: Any = self._child.answer()
                if isinstance(message, Began):
                    self._pid = message.pid
                    if self._late:  # only the process that it was forked from has been ended
                        self._kill()
                elif isinstance(message, Ended):
                    self._pid = None
                    return result or self._ended(trial, message.code)
                else:
                    result = message
                    if not FORKS:
                        return result
        except ChildEnded:
            self.is_over = True
            return result or self._ended(trial, self._child.code())
        finally:
            timer.cancel()

    def _ended(self, trial: Trial, code: int) -> Trouble:
        last = self._child.last_words()
        if self._late:
            return Trouble(FAILED, f"not done after {trial.timeout:g} s", last)
        return Trouble(FAILED, f"the process {ending(code)}", last)

    def _out_of_time(self) -> None:
        self._late = self.is_over = True
        self._kill()

    def _kill(self) -> None:
        for pid in (self._pid, self._child.pid):
            if pid is not None:
                kill_group(pid)

    def kill(self) -> None:
        """End it, and all that it has started."""
        self._kill()
        self._child.close()


def ending(code: int) -> str:
    """Return how a process ended, by its exit code as ``subprocess`` has it."""
    if code >= 0:
        return f"ended by itself (exit code {code})"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    why = {"SIGKILL": ": the system may have run out of memory", "SIGSEGV": ": a crash"}
    return f"was ended by {name}{why.get(name, '')}"
