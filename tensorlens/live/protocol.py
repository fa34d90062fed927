"""Requests to a job and its replies: lines of JSON over a Unix socket, one reply a request."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tensorlens.lines.region import DeviceLevel

VERSION = 2
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
        """Return the next message; None where there is none that ends.

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
