"""Batches on their way from a DataLoader's workers: shared memory, and messages in a pipe."""

from __future__ import annotations

import ctypes
import errno
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
_MEMO = ("MEMOIZE", "BINPUT", "LONG_BINPUT")


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


def sent(results: Any) -> PipeContent | None:
    """Return what is in a worker's queue of results; None where that cannot be looked at.

    The bytes are duplicated with Linux's ``tee``, which consumes nothing.
    """
    try:
        content = _duplicate(results._reader.fileno())
    except Exception:
        # another kind of queue, or a closed one
        return None
    messages = None if content is None else _messages(content)
    if messages is None:
        return None
    batches = [each for each in messages if _END_OF_DATA not in each[1]]
    sizes = [size for each in batches if (size := _batch_bytes(*each)) is not None]
    return PipeContent(
        count=len(messages),
        largest=max(sizes, default=None),
        ends=len(messages) - len(batches),
        pickled=not all(_BY_DESCRIPTOR in pickle for _, pickle in batches),
    )


def _batch_bytes(length: int, pickle: bytes) -> int | None:
    """Return the bytes of a batch, without unpickling it; None where it is cut off."""
    if _BY_DESCRIPTOR not in pickle:
        return length
    if len(pickle) < length:
        return None
    operations = pickletools.genops(pickle)
    steps = [(step.name, item) for step, item, _ in operations if step.name not in _MEMO]
    # rebuild_storage_fd's arguments are a class, a descriptor, which is an object whose state
    # is set with BUILD, and the number of bytes
    return sum(
        int(item)
        for (before, _), (_, item), (after, _) in zip(steps, steps[1:], steps[2:], strict=False)
        if before == "BUILD" and after == "TUPLE3" and type(item) is int
    )


def _duplicate(descriptor: int) -> bytes | None:
    try:
        tee = ctypes.CDLL(None, use_errno=True).tee
        readable, writable = os.pipe()
    except (AttributeError, TypeError, OSError):
        return None
    try:
        tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)
        tee.restype = ctypes.c_ssize_t
        copied = int(tee(descriptor, writable, _MOST, _NONBLOCK))
        if copied < 0:
            # an empty pipe; another error is of what is no pipe
            return b"" if ctypes.get_errno() == errno.EAGAIN else None
        return os.read(readable, copied) if copied else b""
    finally:
        os.close(readable)
        os.close(writable)


def _messages(content: bytes) -> list[tuple[int, bytes]] | None:
    """Return the length of each pickle, and the pickle as far as it is in the pipe.

    They begin as ``Connection._send_bytes`` of CPython's multiprocessing/connection.py writes them.
    """
    messages: list[tuple[int, bytes]] = []
    at = 0
    while at + _HEADER.size <= len(content):
        (length,) = _HEADER.unpack_from(content, at)
        at += _HEADER.size
        if length == -1:
            if at + _LONG.size > len(content):
                break
            (length,) = _LONG.unpack_from(content, at)
            at += _LONG.size
        pickle = content[at : at + length]
        if length <= 0 or not pickle.startswith(_PICKLE):
            # another thread has read the beginning of a message, and not yet all of it
            return None if pickle else messages
        messages.append((length, pickle))
        at += length
    return messages


def shared_in_flight(pids: Sequence[int]) -> int | None:
    """Return the bytes of shared memory that workers made and this process has not received.

    torch's workers hold the descriptor of each until it is received (``reduce_storage`` of
    torch/multiprocessing/reductions.py); with the sharing strategy ``file_system`` there is a file
    instead. None where this system does not tell.
    """
    own = {str(pid) for pid in pids}
    try:
        here = {inode for inode, _, _ in _descriptors("self")} | _mapped()
        made = [*(each for pid in pids for each in _descriptors(str(pid))), *_files()]
    except OSError:
        return None
    sizes = {inode: size for inode, size, maker in made if maker in own and inode not in here}
    return sum(sizes.values())


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
