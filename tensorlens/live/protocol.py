"""Protocol between watcher and job: lines of JSON over a Unix socket private to its user."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tensorlens.errors import TensorlensError
from tensorlens.folders import temporary_folder
from tensorlens.lines.region import DeviceLevel

VERSION = 2
"""Raise it with every change of a reply's fields."""
_LONGEST = 1 << 24
"""Maximum bytes of a line."""


class Ask(StrEnum):
    """Requests."""

    LEVELS = "levels"
    LINES = "lines"
    TENSORS = "tensors"
    SNAPSHOT = "snapshot"
    RECORD = "record"


class Sort(StrEnum):
    """Orders of lines."""

    NOW = "now"
    MOST = "most"
    BLOCKS = "blocks"


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


class Channel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            OSError: the other end is gone, or reads nothing.
        """
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None if the stream ends before a complete one.

        Raises:
            OSError: the other end is gone, or sends nothing.
            ValueError: it sends something else.
        """
        line = self._lines.readline(_LONGEST)
        return dict(json.loads(line)) if line.endswith(b"\n") else None

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._connection.close()


_RUNTIME, _NAME = "XDG_RUNTIME_DIR", "tensorlens"
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
    problems = []
    for folder in _own_folders():
        try:
            _make_private(folder)
            _remove_stale_sockets(folder)
            path = folder / f"{os.getpid()}.sock"
            return _listen_at(path), path
        except OSError as error:
            problems.append(f"{folder}: {error.strerror or error}")
    raise TensorlensError("; ".join(problems) or "no folder for its socket: set TMPDIR to one")


def addresses(uid: int, pid: int | None, *environments: Mapping[str, str]) -> list[Path]:
    """Return the sockets of a user, or of one of the user's processes, that exist."""
    pattern = "*.sock" if pid is None else f"{pid}.sock"
    folders = _folders(uid, (os.environ, *environments))
    return [path for folder in folders for path in _matches(folder, pattern)]


def connect(path: Path) -> socket.socket:
    """Connect to a listening socket.

    Raises:
        ConnectionRefusedError: nobody listens any more.
        OSError: it cannot be opened.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.fspath(path))
    except BaseException:
        connection.close()
        raise
    return connection


def _own_folders() -> Iterator[Path]:
    """Yield the folders that may hold this process's socket."""
    runtime = Path(os.environ.get(_RUNTIME, ""))
    if runtime.is_absolute():
        yield runtime / _NAME
    shared = temporary_folder()
    if shared is not None:
        yield shared / f"{_NAME}-live-{os.geteuid()}"


def _folders(uid: int, environments: Sequence[Mapping[str, str]]) -> list[Path]:
    """Return the folders that may hold a user's sockets: an environment may tell of others."""
    runtimes = [f"/run/user/{uid}", *(each.get(_RUNTIME, "") for each in environments)]
    shared = ["/tmp", str(temporary_folder()), *(each.get("TMPDIR", "") for each in environments)]
    found = [Path(each) / _NAME for each in runtimes]
    found += [Path(each) / f"{_NAME}-live-{uid}" for each in shared]
    return [each for each in dict.fromkeys(found) if each.is_absolute()]


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
            connect(path).close()
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            continue


def _matches(folder: Path, pattern: str) -> list[Path]:
    try:
        return [*folder.glob(pattern)]
    except OSError:
        # another user's
        return []
