"""One trial in a process of its own, seen from the one that asks."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.torch.fake.jobs import Progress
from tensorlens.frameworks.trials import FAILED, Message, Result, Trial, Trouble

_COMMAND = """
import sys
sys.path.insert(0, sys.argv.pop())
from tensorlens.comparing.child import serve
serve()
"""
_LAST = 2000
"""Bytes of what a process wrote that are told when it ends by itself."""


def run_trial(trial: Trial) -> Result:
    """Run a trial in a child process and return what it came to; nothing of it is left behind.

    Whatever becomes of the process, an answer says it. It can be called in any process or thread,
    so that an executor may.

    Raises:
        UsageError: the trial cannot be pickled.
    """
    try:
        request = pickle.dumps(trial, protocol=5)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"option {trial.name!r} cannot go to another process: {reason}"
        ) from None
    folder = str(Path(__file__).parents[2])
    with tempfile.TemporaryFile() as written:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=written,
            env={**os.environ, **trial.environment},
            # a group of its own: processes that the program starts have to go with it
            start_new_session=True,
        )
        watch = _Watch(process, trial.timeout)
        try:
            return _answer(process, request, watch, written, trial)
        finally:
            watch.close()
            _end(process)


def _answer(
    process: subprocess.Popen[bytes],
    request: bytes,
    watch: _Watch,
    written: IO[bytes],
    trial: Trial,
) -> Result:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(request)
        process.stdin.flush()
        while True:
            message: Message = pickle.load(process.stdout)
            if not isinstance(message, Progress):
                return message
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        code = process.wait()
        if watch.is_over:
            return Trouble(FAILED, f"not done after {trial.timeout:g} s", _last(written))
        return Trouble(FAILED, f"the process {ending(code)}", _last(written))


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


class _Watch:
    """Ends a process that takes too long."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float | None) -> None:
        self.is_over = False
        self._process = process
        self._timer: threading.Timer | None = None
        if seconds is not None:
            self._timer = threading.Timer(seconds, self._end)
            self._timer.daemon = True
            self._timer.start()

    def _end(self) -> None:
        self.is_over = True
        _kill(self._process)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _end(process: subprocess.Popen[Any]) -> None:
    _kill(process)
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _kill(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _last(written: IO[bytes]) -> str:
    size = written.seek(0, os.SEEK_END)
    written.seek(max(size - _LAST, 0))
    return written.read().decode("utf-8", "replace").strip()
