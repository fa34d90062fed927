"""Client of a served process: find its socket, or make it open one, and send requests."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.folders import scratch_folder
from tensorlens.guards import reason
from tensorlens.live import VARIABLE, asks_to_serve
from tensorlens.live.protocol import VERSION, Ask, addresses, connect, receive, require_unix, send
from tensorlens.ranks import current_rank

_REPLY_SECONDS = 30.0
"""Seconds that the client waits for the process to send, or to read."""
_ENDING = 1.0
"""Seconds to wait for the end of a process."""


class ProcessEnded(TensorlensError):
    """The watched process has ended."""


class ServedProcess:
    """A process that serves.

    Raises:
        TensorlensError: there is no such process, or it does not serve; the text says why.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._connection = _connect(pid)

    def ask(self, ask: Ask, **options: Any) -> dict[str, Any]:
        """Return the reply to a request.

        Raises:
            ProcessEnded: the process has ended.
            TensorlensError: it refuses, does not answer, or runs another tensorlens.
        """
        try:
            send(self._connection, {"ask": ask, **options})
            reply = receive(self._connection)
        except BlockingIOError:
            reply = None
        except (OSError, EOFError, ValueError):
            raise self._ended_error() from None
        if reply is None:
            # a late reply must not be taken for that to the next request
            self._connection.close()
            self._connection = _connect(self.pid)
            raise TensorlensError(
                f"process {self.pid} does not answer: it may be stopped, or busy outside of Python"
            )
        version = reply.pop("version", None)
        if version != VERSION:
            raise TensorlensError(f"process {self.pid} runs another release of tensorlens")
        if "error" in reply:
            raise TensorlensError(str(reply["error"]))
        return reply

    def _ended_error(self) -> TensorlensError:
        """Return why the connection is closed."""
        # the descriptors of a process are closed before it is gone
        deadline = time.monotonic() + _ENDING
        while _process(self.pid) is not None:
            if time.monotonic() > deadline:
                return TensorlensError(f"process {self.pid} has closed the connection: call again")
            time.sleep(_ENDING / 20)
        return ProcessEnded(f"process {self.pid} has ended")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def serving() -> list[int]:
    """Return the processes of this user that have a socket."""
    require_unix()
    names = {path.stem for path in addresses(os.geteuid(), None, {})}
    return sorted(int(name) for name in names if name.isdigit() and psutil.pid_exists(int(name)))


def only_one() -> int:
    """Return the one process that can be watched.

    Raises:
        UsageError: there is none, or there are several.
    """
    found = serving()
    if not found:
        raise UsageError("no process can be watched: start one with TENSORLENS_LIVE=1")
    if len(found) > 1:
        raise UsageError(f"which process: {', '.join(map(_with_rank, found))}?")
    return found[0]


def _with_rank(pid: int) -> str:
    process = _process(pid)
    rank = None if process is None else current_rank(_environment(process))
    return str(pid) if rank is None else f"{pid} ({rank})"


def _connect(pid: int) -> Connection:
    require_unix()
    process = _process(pid)
    uid = os.geteuid() if process is None else _owner(process)
    environment = {} if process is None else _environment(process)
    is_prepared = asks_to_serve(environment.get(VARIABLE))
    can_be_entered = hasattr(sys, "remote_exec") and uid == os.geteuid() and not is_prepared
    connection = _connection(pid, uid, environment)
    if connection is None and process is not None and can_be_entered:
        connection = inject(pid, lambda: _connection(pid, uid, environment))
    if connection is None:
        left = addresses(uid, pid, environment)
        raise TensorlensError(_reason(process, pid, left, environment))
    return connection


def _process(pid: int) -> psutil.Process | None:
    """Return a process; None where there is none, or it has ended and waits for its parent."""
    try:
        process = psutil.Process(pid)
        is_gone = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return None if is_gone else process
    except (psutil.Error, ValueError, OverflowError):
        return None


def _owner(process: psutil.Process) -> int:
    """Return the user id of a process; our own if it cannot be read."""
    try:
        return int(process.uids().effective)
    except psutil.Error:
        return os.geteuid()


def _environment(process: psutil.Process) -> Mapping[str, str]:
    """Return the initial environment of a process; empty if it cannot be read."""
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _connection(pid: int, uid: int, environment: Mapping[str, str]) -> Connection | None:
    for path in addresses(uid, pid, environment):
        try:
            return connect(path, _REPLY_SECONDS)
        except ConnectionRefusedError:
            continue
        except OSError as error:
            raise TensorlensError(f"process {pid}: {path}: {error.strerror or error}") from None
    return None


def _reason(
    process: psutil.Process | None, pid: int, left: Sequence[Path], environment: Mapping[str, str]
) -> str:
    """Return why a process cannot be watched."""
    if process is None and left:
        return f"process {pid} has ended, and left {left[0]} behind"
    if process is None:
        return f"there is no process {pid}"
    if _owner(process) != os.geteuid():
        return f"process {pid} is another user's"
    if asks_to_serve(environment.get(VARIABLE)):
        return (
            f"process {pid} has {VARIABLE}=1, but cannot be watched yet: it has to import"
            " tensorlens, and torch or tensorflow; if it did, its standard error tells more"
        )
    return (
        f"process {pid} cannot be watched: start it with {VARIABLE}=1 in its environment, or run it"
        " and this command by Python 3.14"
    )


SCRIPT = """\
def _tensorlens_serve():
    try:
        from tensorlens.live import serve
        serve()
    except Exception as error:
        with open({answer!r}, "w", encoding="utf-8") as file:
            file.write(f"{{type(error).__name__}}: {{error}}")
_tensorlens_serve()
del _tensorlens_serve
"""
"""It runs in the main thread of the process, between two instructions."""
_START_SECONDS = 10.0
"""Seconds until the process runs it."""
_PAUSE = 0.05


def inject(pid: int, try_connect: Callable[[], Connection | None]) -> Connection:
    """Make a process serve and return a connection to it.

    Args:
        pid: the process.
        try_connect: return a connection, or None while the process does not listen.

    Raises:
        TensorlensError: it may not, cannot, or did not in time; the text says why.
    """
    with scratch_folder() as folder:
        script, answer = Path(folder) / "serve.py", Path(folder) / "answer"
        script.write_text(SCRIPT.format(answer=str(answer)), encoding="utf-8")
        try:
            # new in 3.14; the caller has checked for it
            sys.__dict__["remote_exec"](pid, str(script))
        except (OSError, RuntimeError, ValueError) as error:
            raise TensorlensError(f"process {pid} cannot be entered: {reason(error)}") from None
        deadline = time.monotonic() + _START_SECONDS
        while (connection := try_connect()) is None:
            if answer.exists():
                text = answer.read_text(encoding="utf-8", errors="replace")
                raise TensorlensError(f"process {pid} cannot be watched: {text}")
            if time.monotonic() > deadline:
                raise TensorlensError(
                    f"process {pid} did not begin to serve in {_START_SECONDS:.0f} s: its standard"
                    " error may tell more, and its main thread may be busy outside of Python"
                )
            time.sleep(_PAUSE)
        return connection
