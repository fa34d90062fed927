"""Requests to a job and its replies: lines of JSON over a Unix socket, one reply a request."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Any

from tensorlens.errors import TensorlensError
from tensorlens.lines.region import DeviceLevel

VERSION = 1
"""To be raised with every change of what replies have."""
_LONGEST = 1 << 24
"""Bytes of a line."""


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
    """Levels of a job now."""

    command: str
    rank: str
    """``rank 1 of 8``; empty for a job's only process."""
    steps: int | None
    """Steps of its optimizer since it is served; None where they are not counted."""
    devices: tuple[DeviceLevel, ...]
    notes: tuple[str, ...]
    """Why a figure is not known."""
    recording: str
    """State of a recording that was asked for; empty where none was."""
    is_recording: bool

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> JobLevels:
        """Return the levels that a reply has."""
        devices = _rows(DeviceLevel, data["devices"])
        return cls(**{**data, "devices": devices, "notes": tuple(data["notes"])})


@dataclass(frozen=True, slots=True)
class LineTotal:
    """Blocks that one line allocated and that live."""

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
    """How long lines have been noted."""
    rows: tuple[LineTotal, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> LineTotals:
        """Return the lines that a reply has."""
        rows = _rows(LineTotal, data["rows"])
        return cls(**{**data, "rows": rows, "notes": tuple(data["notes"])})


@dataclass(frozen=True, slots=True)
class RoleTotal:
    """Storage of one role on one device."""

    device: str
    role: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorTotal:
    """One tensor that stands for its storage, or several that have a name in common."""

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
    """How long it took."""
    count: int
    roles: tuple[RoleTotal, ...]
    rows: tuple[TensorTotal, ...]
    """The largest."""
    notes: tuple[str, ...]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> TensorTotals:
        """Return the tensors that a reply has."""
        roles, rows = _rows(RoleTotal, data["roles"]), _rows(TensorTotal, data["rows"])
        return cls(**{**data, "roles": roles, "rows": rows, "notes": tuple(data["notes"])})


def _rows(kind: Any, rows: Any) -> tuple[Any, ...]:
    return tuple(kind(*row) for row in rows)


def encoded(reply: Any) -> dict[str, Any]:
    """Return a reply as JSON takes it; its rows as lists."""
    found = {name: getattr(reply, name) for name in reply.__slots__}
    return {
        name: [astuple(each) if hasattr(each, "__slots__") else each for each in value]
        if isinstance(value, tuple)
        else value
        for name, value in found.items()
    }


class Channel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            OSError: the other end is gone, or reads nothing.
        """
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None where the other end has closed the connection.

        Raises:
            OSError: the other end is gone, or sends nothing.
            TensorlensError: it sends something else.
        """
        while b"\n" not in self._buffer:
            part = self._connection.recv(1 << 16)
            if not part:
                return None
            self._buffer += part
            if len(self._buffer) > _LONGEST:
                raise TensorlensError("a message without an end")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise TensorlensError("a message that is no JSON object")
        return message

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
