"""Protocol between watcher and job: JSON over a Unix socket private to its user."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tensorlens.errors import TensorlensError
from tensorlens.folders import temporary_folder
from tensorlens.lines.region import DeviceLevel

VERSION = 3
"""Raise it with every change of a reply's fields."""
_LONGEST = 1 << 24
"""Maximum bytes of a message."""


class Ask(StrEnum):
    """Requests."""

    LOOK = "look"
    SNAPSHOT = "snapshot"
    RECORD = "record"


@dataclass(frozen=True, slots=True)
class JobLevels:
    """Levels of a process now."""

    command: str
    rank: str
    """``rank 1 of 8``; empty for a job's only process."""
    steps: int | None
    """Steps of its optimizer since it is served; None where they are not counted."""
    devices: tuple[DeviceLevel, ...]
    notes: tuple[str, ...]
    """Reasons why figures are unknown."""
    recording: str
    """State of a recording that was asked for; empty where none was."""
    is_recording: bool


@dataclass(frozen=True, slots=True)
class LineTotal:
    """Live blocks allocated by one line."""

    line: str
    """``train.py:12 in step``; empty where it is not known."""
    device: str
    nbytes: int
    most: int
    """The most bytes at any look so far."""
    blocks: int


@dataclass(frozen=True, slots=True)
class LineTotals:
    """Live bytes by the line that allocated them."""

    seconds: float
    """Seconds since the recording of lines began."""
    rows: tuple[LineTotal, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoleTotal:
    """Storage of one role on one device."""

    device: str
    role: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorTotal:
    """One tensor per storage, or several with one name."""

    name: str
    count: int
    role: str
    device: str
    shape: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorTotals:
    """A census in figures."""

    seconds: float
    """Duration of the census."""
    count: int
    roles: tuple[RoleTotal, ...]
    rows: tuple[TensorTotal, ...]
    """The largest."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """Figures of one look at a process."""

    levels: JobLevels
    lines: LineTotals
    tensors: TensorTotals | None
    """None if no census was asked for."""


def send(connection: Connection, message: Mapping[str, Any]) -> None:
    """Send a message.

    Raises:
        BlockingIOError: the other end reads nothing in time.
        OSError: the other end is gone.
    """
    connection.send_bytes(json.dumps(message).encode())


def receive(connection: Connection) -> dict[str, Any]:
    """Return the next message.

    Raises:
        EOFError: the other end is gone.
        BlockingIOError: the other end sends nothing in time, or only the beginning of a message.
        OSError: the other end is gone, or sends something else.
        ValueError: it sends something else.
    """
    return dict(json.loads(connection.recv_bytes(_LONGEST)))


def connect(path: Path, seconds: float) -> Connection:
    """Connect to a listening socket at once: a stopped process accepts nobody.

    Args:
        path: of the socket.
        seconds: as for :func:`connection_of`.

    Raises:
        ConnectionRefusedError: nobody listens any more.
        OSError: it cannot be opened, or too many wait to be accepted.
    """
    with socket.socket(socket.AF_UNIX) as connected:
        connected.setblocking(False)
        connected.connect(os.fspath(path))
        return connection_of(connected, seconds)


def connection_of(connected: socket.socket, seconds: float) -> Connection:
    """Return the connection of a socket, each read and write of which waits so long at most."""
    # socket.setdefaulttimeout() of the program makes descriptors that do not wait
    connected.setblocking(True)
    limit = struct.pack("ll", *divmod(round(seconds * 10**6), 10**6))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return Connection(connected.detach())


_NAME = "tensorlens-live"
_PRIVATE_FOLDER, _PRIVATE_SOCKET = 0o700, 0o600


def require_unix() -> None:
    """Check that there are Unix sockets here.

    Raises:
        TensorlensError: there are none.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise TensorlensError("tensorlens top needs Unix sockets, which this system does not have")


def listener() -> tuple[socket.socket, Path]:
    """Return a socket of this process that listens, and its address.

    Sockets that processes left behind when they were killed are removed.

    Raises:
        TensorlensError: there is no folder for one; the text says why.
    """
    require_unix()
    shared = temporary_folder()
    if shared is None:
        raise TensorlensError("no folder for its socket: set TMPDIR to one")
    folder = shared / f"{_NAME}-{os.geteuid()}"
    try:
        _make_private(folder)
        _remove_stale_sockets(folder)
        path = folder / f"{os.getpid()}.sock"
        return _listen_at(path), path
    except OSError as error:
        raise TensorlensError(f"{folder}: {error.strerror or error}") from None


def addresses(uid: int, pid: int | None, environment: Mapping[str, str]) -> list[Path]:
    """Return the sockets of a user, or of one of the user's processes, that exist.

    Args:
        uid: the user.
        pid: None for all processes.
        environment: of the process, which may have a folder of its own for temporary files.
    """
    shared = ["/tmp", str(temporary_folder()), environment.get("TMPDIR", "")]
    found = [Path(each) / f"{_NAME}-{uid}" for each in dict.fromkeys(shared)]
    # not a folder that another user's hides: glob() would raise
    folders = [each for each in found if each.is_absolute() and os.access(each, os.R_OK | os.X_OK)]
    pattern = "*.sock" if pid is None else f"{pid}.sock"
    return [path for each in folders for path in each.glob(pattern)]


def _make_private(folder: Path) -> None:
    """Make a folder that nobody else can enter, or check that it is one.

    Raises:
        OSError: it cannot be made, or is not this user's alone.
    """
    with suppress(FileExistsError):
        folder.mkdir(_PRIVATE_FOLDER)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is not this user's")
    if stat.S_IMODE(found.st_mode) != _PRIVATE_FOLDER:
        folder.chmod(_PRIVATE_FOLDER)


def _listen_at(path: Path) -> socket.socket:
    """Return a socket that listens at a path, in place of one that is left there."""
    # others remove a socket at which nobody listens, and this one does not yet
    first = path.with_suffix(".new")
    first.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(os.fspath(first))
        first.chmod(_PRIVATE_SOCKET)
        listening.listen()
        first.replace(path)
    except BaseException:
        listening.close()
        raise
    return listening


def _remove_stale_sockets(folder: Path) -> None:
    """Remove the sockets of a folder at which nobody listens.

    The PID of a process in another namespace says nothing: only its socket tells that it lives.
    """
    for path in folder.glob("*.sock"):
        try:
            connect(path, 1.0).close()
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            continue
