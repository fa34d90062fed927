"""The report when the process ends: normally, by Ctrl-C, by a signal, in a worker process.

Beside that of ``tensorlens run -o``, spawned workers write reports in files of their own.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tensorlens.guards import warn
from tensorlens.lines.report import Ending, LineReport
from tensorlens.records.tensors import SourceLine
from tensorlens.render.formats import save, tagged
from tensorlens.streams import write
from tensorlens.user_code import is_foreign

_FATAL_SIGNALS = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGXCPU", "SIGUSR1", "SIGUSR2")
"""Signals from outside whose default action ends the process."""
_USER_SIGNALS = ("SIGUSR1", "SIGUSR2")
"""Left alone under SLURM: Lightning handles them, to requeue a job, only if nobody else does."""
_WORKERS_OUTPUT = "TENSORLENS_WORKERS_OUTPUT"


class ExitReport:
    """A report, made once by ``report(process)`` at the end of this process or one that it forked.

    ``process`` names a forked or spawned process for the report's header; it is None in any other.
    """

    def __init__(self, report: Callable[[str | None], None]) -> None:
        self._report = report
        self._installed_in: int | None = None
        self._done = False
        self._reporting = False
        self.ending: Ending | None = None
        """Cause of this process's early end; None without one, and always in a worker."""
        self._fatal: int | None = None
        """Number of the signal that arrived during the report."""

    def install(self) -> None:
        """Arrange for the report; later calls do nothing."""
        if self._installed_in is not None:
            return
        self._installed_in = os.getpid()
        is_worker = multiprocessing.parent_process() is not None
        if is_worker:
            self._report_from_worker()
        atexit.register(self._run)
        multiprocessing.util.register_after_fork(self, ExitReport._report_from_worker)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)
        self._report_before_exit()
        if not is_worker and threading.current_thread() is threading.main_thread():
            for number in _fatal_signals():
                # not those that the program handles or nohup ignores
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._on_fatal)

    def _report_before_exit(self) -> None:
        """Report before ``os._exit`` ends this process without any exit handler."""
        real = os._exit

        @functools.wraps(real)
        def exit_after_report(status: int) -> NoReturn:
            # not in a forked child, nor in a watchdog thread while the main thread hangs
            in_main = threading.current_thread() is threading.main_thread()
            if in_main and os.getpid() == self._installed_in:
                self._run()
            real(status)

        os._exit = exit_after_report

    def _reset(self) -> None:
        self._done = False

    def _report_from_worker(self) -> None:
        # a worker ends by os._exit after multiprocessing's finalizers; signals end it at once
        multiprocessing.util.Finalize(None, self._run, exitpriority=100)
        for number in (getattr(signal, name, None) for name in _FATAL_SIGNALS):
            if number is not None and signal.getsignal(number) == self._on_fatal:
                signal.signal(number, signal.SIG_DFL)

    def _run(self) -> None:
        if not self._done:
            self._done = True
            self._reporting = True
            # the error that ends the process; at an interactive prompt only the last one printed
            error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
            interrupted = isinstance(error, KeyboardInterrupt)
            if error is not None:
                cause = "SIGINT" if interrupted else type(error).__name__
                self._note_ending(cause, _frames_of(error))
            try:
                with _deferred_interrupt() as interrupts:
                    self._report(self._child_name())
                interrupted = interrupted or bool(interrupts)
            except (Exception, KeyboardInterrupt) as error:
                interrupted = interrupted or isinstance(error, KeyboardInterrupt)
                warn("the report is not finished", error)
            finally:
                self._reporting = False
            if self._fatal is not None:
                _die_by(self._fatal)
            if interrupted:
                _die_by_sigint()

    def _child_name(self) -> str | None:
        is_worker = multiprocessing.parent_process() is not None
        if os.getpid() == self._installed_in and not is_worker:
            return None
        name = f" ({multiprocessing.current_process().name})" if is_worker else ""
        return f"process {os.getpid()}{name}"

    def _on_fatal(self, number: int, frame: FrameType | None) -> None:
        if self._reporting:
            self._fatal = number
            return
        # walk_stack(None) would walk our own stack
        callers = () if frame is None else traceback.walk_stack(frame)
        self._note_ending(signal.Signals(number).name, callers)
        try:
            self._run()
        finally:
            _die_by(number)

    def _note_ending(self, cause: str, frames: Iterable[tuple[FrameType, int]]) -> None:
        """Set :attr:`ending` to a cause and the innermost line of the user's code in ``frames``."""
        if self.ending is not None or self._child_name() is not None:
            return
        self.ending = Ending(cause, None)
        with suppress(Exception):
            codes = ((frame.f_code, lineno) for frame, lineno in frames)
            code, lineno = next(each for each in codes if not is_foreign(each[0].co_filename))
            self.ending = Ending(cause, SourceLine(code.co_filename, lineno, code.co_qualname))


def set_workers_output(path: Path | None) -> None:
    """Have workers spawned from now on write beside this file, or print if None."""
    if path is None:
        os.environ.pop(_WORKERS_OUTPUT, None)
    else:
        os.environ[_WORKERS_OUTPUT] = str(path)


def workers_output() -> Path | None:
    """Return the file that workers write beside; None if they print."""
    path = os.environ.get(_WORKERS_OUTPUT)
    return Path(path) if path else None


def write_of_worker(report: LineReport, path: Path) -> bool:
    """Write a spawned worker's report to ``run.4711.json`` beside ``run.json``.

    Returns:
        Whether that succeeded; if not, print the tables instead.
    """
    path = path.with_name(tagged(path.name, str(os.getpid())))
    try:
        save(report, path)
    except Exception as error:
        warn(f"{path} was not written, its figures are printed instead", error)
        return False
    with suppress(OSError, ValueError, AttributeError):
        typed = path.name if path.parent == Path.cwd() else path
        write(f"tensorlens: wrote {typed}\n", sys.stderr)
    return True


def _fatal_signals() -> list[int]:
    names = [each for each in _FATAL_SIGNALS if hasattr(signal, each)]
    if "SLURM_JOB_ID" in os.environ:
        names = [each for each in names if each not in _USER_SIGNALS]
    caught = _caught_signals()
    numbers = [int(getattr(signal, each)) for each in names]
    return [number for number in numbers if not caught >> (number - 1) & 1]


def _caught_signals() -> int:
    """Return a bit for each signal with a handler, in C as well: faulthandler's."""
    try:
        status = Path("/proc/self/status").read_text("ascii", "replace")
        return int(next(line for line in status.splitlines() if "SigCgt" in line).split()[1], 16)
    except (OSError, StopIteration, ValueError, IndexError):
        return 0


@contextmanager
def _deferred_interrupt() -> Iterator[list[int]]:
    """Yield a list that takes the first Ctrl-C; only a second one interrupts the report."""
    noted: list[int] = []
    default = signal.default_int_handler

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, default)

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not default:
        yield noted
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, default)


def _frames_of(error: BaseException) -> list[tuple[FrameType, int]]:
    return [*traceback.walk_tb(error.__traceback__)][::-1]


def _die_by(number: int) -> None:
    # by the signal and not by an exit code, as without us
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _die_by_sigint() -> None:
    # CPython dies by the signal after an uncaught KeyboardInterrupt, but forgets that at the next
    # exec of a string, which any import at exit may do (pythonrun.c, run_eval_code_obj)
    with suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")
