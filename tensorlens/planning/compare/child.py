"""The process that trials come from: it imports what they need, and forks one process for each.

The one that forks never runs a program, so that each trial finds memory as a fresh process has it,
and is spared the import. Where forking is not safe it runs one trial and is over.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import sys
import threading
from dataclasses import dataclass
from os import _exit
from typing import Any, BinaryIO

from tensorlens.frameworks.trials.failures import failure
from tensorlens.frameworks.trials.trial import (
    CANNOT,
    FAILED,
    CannotApply,
    Message,
    Trial,
    Trouble,
    prepare,
    run,
)

FORKS = sys.platform == "linux"
"""Whether a process is forked for each trial; elsewhere system libraries forbid it."""


@dataclass(frozen=True, slots=True)
class Began:
    """A trial has a process of its own now."""

    pid: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The process of a trial is over."""

    code: int
    """As ``subprocess`` has it: negative for a signal."""


def serve() -> None:
    """Run the trials that come on standard input, until there are no more.

    Answers go to what is standard output; the programs have neither of them. A trial ends when
    whoever asked is gone.
    """
    source, target = _taken(0, "rb"), _taken(1, "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    while True:
        try:
            trial: Trial = pickle.load(source)
        except EOFError:
            return
        if not FORKS:
            _run(trial, source, target)
        sys.path[:] = trial.path
        prepare(trial.framework)
        pid = os.fork()
        if not pid:
            # a group of its own: processes that the program starts have to go with it
            os.setpgid(0, 0)
            # it says so itself: two that write into one pipe would cut each other's answers
            _send(target, Began(os.getpid()))
            _run(trial, source, target)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        _send(target, Ended(os.waitstatus_to_exitcode(status)))


def _run(trial: Trial, source: BinaryIO, target: BinaryIO) -> None:
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()
    sys.path[:] = trial.path
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            answer: Message = run(trial)
    except CannotApply as error:
        answer = Trouble(CANNOT, str(error))
    except BaseException as error:
        found = failure(error, output.getvalue())
        answer = Trouble(FAILED, found.text.removeprefix("the program failed: "), found.details)
    _send(target, answer)
    # what the program leaves running must not keep the process
    _exit(0)


def _end_with(source: BinaryIO) -> None:
    with contextlib.suppress(OSError):
        os.read(source.fileno(), 1)
    _exit(1)


def _taken(descriptor: int, mode: str) -> Any:
    return os.fdopen(os.dup(descriptor), mode)


def _send(target: BinaryIO, message: Message | Began | Ended) -> None:
    # in one write: the trial and the process it was forked from share the pipe
    target.write(pickle.dumps(message, protocol=5))
    target.flush()
