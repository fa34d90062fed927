"""What waits in a pipe between processes, looked at and left there."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from dataclasses import dataclass

_NONBLOCK = 2
"""``SPLICE_F_NONBLOCK`` of Linux's fcntl.h."""
_MOST = 1 << 20
_HEADER = struct.Struct("!i")
_LONG = struct.Struct("!Q")
_PICKLE = b"\x80"


@dataclass(frozen=True, slots=True)
class Message:
    """One object that was sent by ``multiprocessing``."""

    length: int
    """Bytes of its pickle."""
    content: bytes
    """The pickle as far as it is in the pipe."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it is in the pipe."""
        return len(self.content) == self.length


def waiting_messages(descriptor: int) -> list[Message] | None:
    """Return the messages in a pipe that ``multiprocessing.Pipe`` made; None if not to be had.

    Their bytes are duplicated with Linux's ``tee``, which consumes nothing. Messages begin as
    ``Connection._send_bytes`` of CPython's multiprocessing/connection.py writes them.
    """
    content = _duplicate(descriptor)
    return None if content is None else _parsed(content)


def _duplicate(descriptor: int) -> bytes | None:
    try:
        tee = ctypes.CDLL(None, use_errno=True).tee
        readable, writable = os.pipe()
    except (AttributeError, TypeError, OSError):
        return None
    try:
        tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)
        tee.restype = ctypes.c_ssize_t
        size = getattr(fcntl, "F_GETPIPE_SZ", None)
        if size is not None and fcntl.fcntl(descriptor, size) > fcntl.fcntl(writable, size):
            fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, fcntl.fcntl(descriptor, size))
        found = int(tee(descriptor, writable, _MOST, _NONBLOCK))
        if found < 0:
            # an empty pipe; another error is of what is no pipe
            return b"" if ctypes.get_errno() == 11 else None
        return os.read(readable, found) if found else b""
    except (OSError, ValueError):
        return None
    finally:
        os.close(readable)
        os.close(writable)


def _parsed(content: bytes) -> list[Message] | None:
    found: list[Message] = []
    at = 0
    while at + _HEADER.size <= len(content):
        (length,) = _HEADER.unpack_from(content, at)
        at += _HEADER.size
        if length == -1:
            if at + _LONG.size > len(content):
                break
            (length,) = _LONG.unpack_from(content, at)
            at += _LONG.size
        message = Message(length, content[at : at + length])
        if length <= 0 or not message.content.startswith(_PICKLE):
            # another thread has read the beginning of a message, and not yet all of it
            return None if message.content else found
        found.append(message)
        at += length
    return found
