"""Runs programs in other processes, from the asking side."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.folders import scratch_file
from tensorlens.guards import one_line
from tensorlens.interpreter import reentrant_lock
from tensorlens.planning.trials.jobs import (
    Failure,
    FailureKind,
    Job,
    JobEnd,
    JobStart,
    Program,
    Progress,
    Result,
    WakeRequest,
)
from tensorlens.planning.trials.server import FORKS

_COMMAND = """
import sys
sys.path.insert(0, sys.argv.pop())
from tensorlens.planning.trials.server import leave, serve
serve()
leave()
"""
_LAST = 2000
"""Bytes of a process's output that are shown if it ends without a result."""
_CLEANUP = 10.0
"""Seconds that a process gets to clean up."""
_FOLDER = Path(__file__).parents[2]
"""The folder that contains this package, for ``sys.path``."""
_LOADING = "TENSORLENS_LOADING"
"""Environment variable with the programs that a process and its parents were started to run."""


def interpreter() -> Sequence[str]:
    """Return the command of a fresh interpreter; tests replace this by a warm one."""
    return (sys.executable,)


class ProgramFailed(TensorlensError):
    """The program raised an error."""

    def __init__(self, failure: Failure) -> None:
        is_of_program = failure.kind is FailureKind.FAILED
        super().__init__(f"the program failed: {failure.text}" if is_of_program else failure.text)
        self.failure = failure
        self.details = failure.details
        """The program's traceback and its last output."""
        if self.details:
            self.add_note(self.details)


class Runner:
    """Context manager that runs jobs one after the other in other processes.

    Jobs on fake tensors share a process; any other job gets a new one.

    Args:
        keeps: let the last shared process wait for a minute, so that the next question about the
            same program needs no imports.
    """

    def __init__(self, *, keeps: bool = False) -> None:
        self._keeps = keeps and FORKS
        self._servers: dict[Hashable, _Server] = {}

    def run(self, job: Job, progress: Callable[[int], None] | None = None) -> Result:
        """Run a job and return its result. A crash of its process is a result too.

        Args:
            job: the job.
            progress: called with the number of steps done on fake tensors.
        """
        try:
            request = pickle.dumps(job, protocol=5)
        except Exception as error:
            raise UsageError(
                f"{job.name!r} cannot go to another process: {one_line(error)}"
            ) from None
        is_fake = job.is_fake
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if is_fake else {}
        environment = {**os.environ, **job.environment, **hidden, _LOADING: _loading(job.program)}
        key = _key(job, environment)
        with _lock:
            server = self._servers.pop(key, None) or _kept.pop(key, None)
        if server is not None and not server.wakes():
            server.kill()
            server = None
        is_used = is_fake and server is not None
        server = server or _Server(environment, is_fake)
        try:
            result = server.run(job, request, progress)
        except BaseException:
            server.kill()
            raise
        has_failed = isinstance(result, Failure) and result.kind is FailureKind.FAILED
        if is_used and has_failed and not server.is_over:
            # a program that registers operators fails if it begins twice in a process
            server.kill()
            return self.run(job, progress)
        if server.is_over or not (is_fake or FORKS):
            server.kill()
        else:
            self._servers[key] = server
        return result

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        while self._servers:
            key, server = self._servers.popitem()
            if kind is not None or not server.is_fake:
                server.kill()
            elif self._keeps:
                with _lock:
                    close_kept()
                    _kept[key] = server
            else:
                # a program that ran in the process itself may have to clean up
                server.close()


def _loading(program: Program) -> str:
    """Return the programs of this process and its parents, and the next one.

    Raises:
        UsageError: the next one is among them, and would start itself without end.
    """
    known = os.environ.get(_LOADING, "").split("\n")
    this = f"{program.file or program.module or ''}:{program.name}"
    if this in known:
        raise UsageError(
            f"{program.name} asks about itself when it is loaded: put that call under"
            ' if __name__ == "__main__":'
        )
    return "\n".join([*known, this])


def _key(job: Job, environment: dict[str, str]) -> Hashable:
    """Return the key of a process: its program, environment and, of fake tensors, its device."""
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        folder = None
    program = replace(job.program, global_settings=None, arguments=tuple(job.program.arguments))
    # a process prepares the device of fake tensors only once
    device = (job.device, job.card) if job.is_fake else None
    return program, device, os.getpid(), folder, *interpreter(), *sorted(environment.items())


_kept: dict[Hashable, _Server] = {}
"""The process that waits for the next question about its program, if any, by its key."""
_lock = reentrant_lock()


@atexit.register
def close_kept() -> None:
    """End the process that waits for the next question; it cleans up first."""
    with _lock:
        while _kept:
            _, server = _kept.popitem()
            # a process inherited by a fork is its parent's
            if server.parent == os.getpid():
                server.close()


_current: ContextVar[Runner | None] = ContextVar("_current", default=None)


@contextlib.contextmanager
def shared_runner(*, keeps: bool = False) -> Iterator[Runner]:
    """Yield the runner of an outer ``with`` of this thread, or a new one made with ``keeps``."""
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    with Runner(keeps=keeps) as runner:
        token = _current.set(runner)
        try:
            yield runner
        finally:
            _current.reset(token)


class _Server:
    """A process that runs jobs, or forks one for each; Ctrl-C in the terminal does not reach it."""

    def __init__(self, environment: dict[str, str], is_fake: bool) -> None:
        self.is_fake = is_fake
        self.is_over = False
        self.parent = os.getpid()
        self._pid: int | None = None
        """Process that was forked for the running job."""
        self._is_late = False
        # a pipe that nobody reads would block a program that writes much
        self._written = scratch_file()
        self._begin = 0
        """Offset in its output at which the running job began."""
        self._process = subprocess.Popen(
            [*interpreter(), "-c", _COMMAND, str(_FOLDER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._written,
            env=environment,
            start_new_session=True,
        )

    def run(self, job: Job, request: bytes, progress: Callable[[int], None] | None) -> Result:
        """Run a job and return its result."""
        self._pid, self._is_late = None, False
        result: Result | None = None
        timer = threading.Timer(job.timeout or 0, self._out_of_time)
        timer.daemon = True
        if job.timeout is not None and job.timeout < threading.TIMEOUT_MAX:
            timer.start()
        try:
            self._ask(request)
            while True:
                message = self._answer()
                if isinstance(message, Progress):
                    if progress is not None:
                        progress(message.steps_done)
                elif isinstance(message, JobStart):
                    self._pid = message.pid
                    if self._is_late:  # only the process that it was forked from has been ended
                        self._kill()
                elif isinstance(message, JobEnd):
                    self._pid = None
                    return result or self._ended(job, message.code)
                else:
                    result = message
                    if job.is_fake or not FORKS:
                        return result
        except (BrokenPipeError, EOFError, pickle.UnpicklingError):
            self.is_over = True
            return result or self._ended(job, self._process.wait())
        finally:
            timer.cancel()

    def wakes(self) -> bool:
        """Tell whether the process still runs and the files of its program are unchanged."""
        try:
            self._ask(pickle.dumps(WakeRequest()))
            return self._answer() is True
        except (OSError, ValueError, EOFError, pickle.UnpicklingError):
            return False

    def close(self) -> None:
        """End it and wait; kill it if threads of its program keep it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_CLEANUP)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._process.stdout.close()
        self._written.close()

    def kill(self) -> None:
        """Kill it, with all processes that it has started."""
        self._kill()
        self.close()

    def _ask(self, request: bytes) -> None:
        assert self._process.stdin is not None
        self._begin = self._written.seek(0, os.SEEK_END)
        self._process.stdin.write(request)
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return pickle.load(self._process.stdout)

    def _ended(self, job: Job, code: int) -> Failure:
        size = self._written.seek(0, os.SEEK_END)
        self._written.seek(max(size - _LAST, self._begin))
        last = self._written.read().decode("utf-8", "replace").strip()
        if self._is_late:
            return Failure(FailureKind.FAILED, f"not done after {job.timeout:g} s", last)
        return Failure(FailureKind.FAILED, f"the process {ending(code)}", last, _signal_name(code))

    def _out_of_time(self) -> None:
        self._is_late = self.is_over = True
        self._kill()

    def _kill(self) -> None:
        for pid in (self._pid, self._process.pid):
            if pid is not None:
                with contextlib.suppress(OSError):
                    if hasattr(os, "killpg"):
                        os.killpg(pid, signal.SIGKILL)
                    else:
                        os.kill(pid, signal.SIGTERM)


def ending(code: int) -> str:
    """Return in words how a process ended, from its exit code as in ``subprocess``."""
    if code >= 0:
        return f"ended by itself (exit code {code})"
    name = _signal_name(code)
    why = {"SIGKILL": ": the system may have run out of memory", "SIGSEGV": ": a crash"}
    return f"was ended by {name}{why.get(name, '')}"


def _signal_name(code: int) -> str:
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
