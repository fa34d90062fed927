"""Batches on their way from a DataLoader's workers: shared memory, and messages in a pipe."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pickletools
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


_SHARED = re.compile(r"/(?:dev/shm/)?torch_(\d+)_\d+_\d+(?: \(deleted\))?$")
"""How torch names shared memory: by the process that made it (c10's StorageUtils.cpp,
``NewProcessWideShmHandle``)."""
_SHM = Path("/dev/shm")
_END_OF_DATA = b"_IterableDatasetStopIteration"
_BY_DESCRIPTOR = b"rebuild_storage_fd"


@dataclass(frozen=True, slots=True)
class PipeContent:
    """Content of the pipe that workers put their results into."""

    count: int
    """How many messages have begun to be in it."""
    largest: int | None
    """Bytes of the largest batch in it; None where there is none, or none could be seen."""
    ends: int
    """How many are no batches, but say that a worker's data has ended."""
    pickled: bool
    """Whether batches are in the messages themselves, and not in shared memory."""


def shared_in_flight(pids: Sequence[int]) -> int | None:
    """Return the bytes of shared memory that workers made and this process has not received.

    torch's workers hold the descriptor of each until it is received (``reduce_storage`` of
    torch/multiprocessing/reductions.py); with the sharing strategy ``file_system`` there is a file
    instead. None where this system does not tell.
    """
    own = {str(pid) for pid in pids}
    try:
        here = {inode for inode, _, _ in _descriptors("self")} | _mapped()
        held = [each for pid in pids for each in _descriptors(str(pid))]
        found = {
            inode: size
            for inode, size, maker in (*held, *_files())
            if maker in own and inode not in here
        }
    except OSError:
        return None
    return sum(found.values())


def _descriptors(process: str) -> Iterator[tuple[tuple[int, int], int, str]]:
    folder = f"/proc/{process}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except FileNotFoundError:
        if process == "self":
            raise
        return
    for name in names:
        try:
            match = _SHARED.search(os.readlink(f"{folder}/{name}"))  # noqa: PTH115
            if match:
                status = os.stat(f"{folder}/{name}")  # noqa: PTH116
                yield (status.st_dev, status.st_ino), status.st_size, match[1]
        except FileNotFoundError:
            continue


def _mapped() -> set[tuple[int, int]]:
    found = set()
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            fields = line.split(None, 5)
            if len(fields) == 6 and _SHARED.search(fields[5].rstrip()):
                major, minor = (int(part, 16) for part in fields[3].split(":"))
                found.add((os.makedev(major, minor), int(fields[4])))
    return found


def _files() -> Iterator[tuple[tuple[int, int], int, str]]:
    if not _SHM.is_dir():
        return
    for entry in os.scandir(_SHM):
        match = _SHARED.search(f"/{entry.name}")
        if match:
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            yield (status.st_dev, status.st_ino), status.st_size, match[1]


def sent(results: Any) -> PipeContent | None:
    """Return what is in a worker's queue of results; None where that cannot be looked at."""
    try:
        messages = waiting_messages(results._reader.fileno())
    except Exception:
        # another kind of queue, or a closed one
        return None
    if messages is None:
        return None
    batches = [message for message in messages if _END_OF_DATA not in message.content]
    sizes = [size for size in map(_bytes_of, batches) if size is not None]
    return PipeContent(
        count=len(messages),
        largest=max(sizes, default=None),
        ends=len(messages) - len(batches),
        pickled=any(_BY_DESCRIPTOR not in message.content for message in batches if message.length),
    )


def _bytes_of(message: Message) -> int | None:
    """Return the bytes of the batch in a message, without unpickling it."""
    if _BY_DESCRIPTOR not in message.content:
        return message.length
    if not message.is_whole:
        return None
    # rebuild_storage_fd's arguments are a class, a descriptor, which is an object whose state is
    # set with BUILD, and the number of bytes
    total, before = 0, ("", "")
    number: Any = None
    for opcode, argument, _ in pickletools.genops(message.content):
        if opcode.name == "TUPLE3" and before[0] == "BUILD" and before[1].startswith("BININT"):
            total += int(number)
        if opcode.name == "LONG1" and before[1] == "BUILD":
            before = (before[1], "BININT")
            number = argument
            continue
        if opcode.name not in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            before = (before[1], opcode.name)
            number = argument
    return total
