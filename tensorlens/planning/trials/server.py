"""The process that runs jobs: it reads them from standard input and answers on standard output.

Steps on fake tensors run in the process itself, whose device is prepared once. For any other job it
imports the framework and forks, which saves the import and leaves memory as in a fresh process.
If forking is not safe, it runs one such job and ends.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import os
import pickle
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from os import _exit
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tensorlens.config import is_on
from tensorlens.errors import TensorlensError, UsageError
from tensorlens.folders import scratch_file
from tensorlens.guards import one_line
from tensorlens.planning.trials.jobs import (
    OPTIONS,
    Failure,
    FailureKind,
    Job,
    JobEnd,
    JobStart,
    Message,
    Progress,
    Result,
    WakeRequest,
)
from tensorlens.user_code import is_foreign

FORKS = sys.platform == "linux"
"""Whether a process is forked for each job; elsewhere system libraries do not allow it."""
_FAKE = "tensorlens.planning.torch.job"
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_PATIENCE = 60.0
"""Seconds to wait for the next job."""
_LAST = 2000
"""Characters of the program's output in a failure."""
_LOGGED = re.compile(r"[EW]\d{4} .*\btorch/_subclasses/")
"""Lines in which torch logs exceptions of operators on fake tensors."""
_ADVICE = (
    "call the step without tensorlens: if it fails there too, mend the program; if not, it needs"
    " the values of a tensor, and an estimate runs on tensors without data"
)
_WITHOUT_DATA = re.compile(r"fake|meta tensor|DataDependent|DynamicOutputShape", re.IGNORECASE)
"""Errors of operators that need data; others are most likely the program's."""
_SEVERAL_DEVICES = ("two different devices", "at least two devices")
"""Errors of operators with operands on several devices."""

Send = Callable[[Message | bool], None]


def serve() -> None:
    """Run the jobs from standard input until its end, or until none has come for a minute.

    Programs have neither standard input nor standard output.
    """
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def send(message: Message | bool) -> None:
        # in one write: a job and the process it was forked from share the pipe
        target.write(pickle.dumps(message, protocol=5))
        target.flush()

    files: dict[str, int] = {}
    while True:
        if FORKS and not select.select([source], [], [], _PATIENCE)[0]:
            return
        try:
            job: Job | WakeRequest = pickle.load(source)
        except EOFError:
            return
        if isinstance(job, WakeRequest):
            send(all(_change_time(file) == time for file, time in files.items()))
            continue
        sys.path[:] = job.path
        if job.is_fake:
            result = _result(job, send)
            files = {file: _change_time(file) for file in _files_of_programs()}
            send(result)
            # without torch the job has failed already
            with contextlib.suppress(Exception):
                if importlib.import_module(_FAKE).settle(job.program):
                    continue
            # the next request must see the end, even if threads of the program keep this process
            target.close()
            return
        elif FORKS:
            _fork(job, source, send)
        else:
            _run_alone(job, source, send)


def leave() -> NoReturn:
    """End the process as Python does, without the slow teardown of its modules."""
    # waits for threads at the end; concurrent.futures and others register there
    getattr(threading, "_shutdown", lambda: None)()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _exit(0)


def _files_of_programs() -> Iterator[str]:
    """Yield the files of the program's own modules, and of the script."""
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not is_foreign(file):
            yield file
    if sys.argv:
        yield sys.argv[0]


def _change_time(file: str) -> int:
    """Return the time of a file's last change in nanoseconds; 0 if there is no file."""
    try:
        return Path(file).stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


def _fork(job: Job, source: BinaryIO, send: Send) -> None:
    importlib.import_module(OPTIONS[job.framework]).prepare()
    pid = os.fork()
    if not pid:
        # a group of its own, to end the processes that the program starts as well
        os.setpgid(0, 0)
        # sent from here: two processes that write into one pipe would mix their messages
        send(JobStart(os.getpid()))
        _run_alone(job, source, send)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    send(JobEnd(os.waitstatus_to_exitcode(status)))


def _run_alone(job: Job, source: BinaryIO, send: Send) -> None:
    """Run a job and end this process, at once if the asking process is gone."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(source.fileno(), 1)
        _exit(1)

    threading.Thread(target=wait, daemon=True).start()
    send(_result(job, send))
    # threads that the program leaves must not keep the process
    _exit(0)


def _result(job: Job, send: Send) -> Result:
    # a file: programs ask for its descriptor, its buffer, or reconfigure it
    written = scratch_file()
    output = io.TextIOWrapper(written, "utf-8", "backslashreplace", write_through=True)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            framework = importlib.import_module(OPTIONS[job.framework])
            result: Result = framework.run(job, lambda done: send(Progress(done)))
        return result
    except BaseException as error:
        text = ""
        # the program may have closed it
        with contextlib.suppress(OSError, ValueError):
            written.seek(0)
            text = written.read().decode("utf-8", "replace")
        return _failure(error, text, is_fake=job.is_fake)


def _failure(error: BaseException, output: str, *, is_fake: bool) -> Failure:
    """Return the failure for an error: one line, the program's traceback and its last output."""
    if isinstance(error, TensorlensError):
        is_usage = isinstance(error, UsageError)
        return Failure(FailureKind.USAGE if is_usage else FailureKind.CANNOT, str(error))
    whole = text = type(error).__name__
    # __str__ of an error may fail
    with contextlib.suppress(Exception):
        whole, text = f"{whole}: {error}", f"{whole}: {one_line(error, 300)}"
    lines = _own_frames(error)
    if any(each in text for each in _SEVERAL_DEVICES):
        text = (
            "an operator has tensors on different devices: make_step must build everything that the"
            " step uses, model and optimizer included, and put it on the device"
        )
    if whole != text:
        lines.append(whole)
    last = "".join(each for each in output.splitlines(True) if not _LOGGED.match(each))
    last = last[-_LAST:].strip()
    if last:
        lines += ["it wrote last:", last]
    if is_fake and _WITHOUT_DATA.search(whole):
        lines.append(_ADVICE)
    return Failure(FailureKind.FAILED, text, "\n".join(lines))


def _own_frames(error: BaseException) -> list[str]:
    """Return the traceback from the program's begin on, only its own frames if there are any.

    With ``TENSORLENS_TRACEBACK`` frames of libraries are kept.
    """
    entries: list[Any] = traceback.extract_tb(error.__traceback__)
    start = next((at + 1 for at, each in enumerate(entries) if each.name == "call_program"), 0)
    entries = [each for each in entries[start:] if not each.filename.startswith(_PACKAGE)]
    own = [each for each in entries if not is_foreign(each.filename)]
    if not own or is_on(os.environ.get("TENSORLENS_TRACEBACK", "0")):
        own = entries
    lines = [line.rstrip() for line in traceback.format_list(own)]
    if len(own) < len(entries):
        count = len(entries) - len(own)
        lines.append(f"  library frames left out: {count} (TENSORLENS_TRACEBACK=1 shows them)")
    return lines
