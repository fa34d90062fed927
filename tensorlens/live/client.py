"""The other end: finds the socket of a process, and asks."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tensorlens.errors import TensorlensError
from tensorlens.live import VARIABLE, is_wanted
from tensorlens.live.addresses import addresses, connected
from tensorlens.live.protocol import VERSION, Ask, Channel

_PATIENCE = 30.0
"""Seconds for a reply."""
_HOW = f"start it with {VARIABLE}=1 in its environment"


class JobEnded(TensorlensError):
    """The process that was watched is there no more."""


class Job:
    """A process that serves.

    Raises:
        TensorlensError: there is no such process, or it does not serve; the text says why.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._channel = _channel(pid)

    def ask(self, ask: Ask, **options: Any) -> dict[str, Any]:
        """Return the reply to a request.

        Raises:
            JobEnded: the process has ended.
            TensorlensError: it refuses, does not answer, or runs another tensorlens.
        """
        try:
            self._channel.send({"ask": ask, **options})
            reply = self._channel.receive()
        except TimeoutError:
            raise TensorlensError(
                f"process {self.pid} does not answer: it may be stopped, or busy outside of Python"
            ) from None
        except OSError:
            reply = None
        if reply is None:
            raise JobEnded(f"process {self.pid} has ended")
        version = reply.pop("version", None)
        if version != VERSION:
            raise TensorlensError(f"process {self.pid} runs another release of tensorlens")
        if "error" in reply:
            raise TensorlensError(str(reply["error"]))
        return reply

    def close(self) -> None:
        """Leave it alone."""
        self._channel.close()


def serving() -> list[int]:
    """Return the processes of this user that have a socket."""
    names = {path.stem for path in addresses(os.geteuid())}
    return sorted(int(name) for name in names if name.isdigit() and psutil.pid_exists(int(name)))


def _channel(pid: int) -> Channel:
    try:
        process: psutil.Process | None = psutil.Process(pid)
        assert process is not None
        uid = process.uids().effective
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        process, uid = None, os.geteuid()
    paths = addresses(uid, pid)
    for path in paths:
        try:
            connection = connected(path)
        except ConnectionRefusedError:
            continue
        except OSError as error:
            raise TensorlensError(f"process {pid}: {path}: {error.strerror or error}") from None
        connection.settimeout(_PATIENCE)
        return Channel(connection)
    raise TensorlensError(_reason(process, pid, paths))


def _reason(process: psutil.Process | None, pid: int, left: list[Path]) -> str:
    """Return why a process cannot be watched."""
    if process is None:
        if left:
            return f"process {pid} has ended, and left {left[0]} behind"
        return f"there is no process {pid}"
    if process.uids().effective != os.geteuid():
        return f"process {pid} is another user's"
    value = ""
    with suppress(psutil.Error, OSError):
        value = process.environ().get(VARIABLE, "")
    if is_wanted(value):
        return (
            f"process {pid} has {VARIABLE}=1, but cannot be watched yet: it has to import"
            " tensorlens, and torch or tensorflow; if it did, its standard error tells more"
        )
    return f"process {pid} cannot be watched: {_HOW}"
