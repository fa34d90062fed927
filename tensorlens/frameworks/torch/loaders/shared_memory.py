"""Shared memory of batches on their way from a DataLoader's workers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

_SHARED = re.compile(r"/(?:dev/shm/)?torch_(\d+)_\d+_\d+(?: \(deleted\))?$")
"""torch's names of shared memory, with the process that made it: ``NewProcessWideShmHandle`` of
c10's StorageUtils.cpp."""
_SHM = Path("/dev/shm")


def shared_in_flight(pids: Sequence[int]) -> int | None:
    """Return the bytes of shared memory from workers that this process has not received.

    A worker keeps the descriptor of each until it is received (``reduce_storage`` of
    torch/multiprocessing/reductions.py); with the sharing strategy ``file_system`` there is a file
    instead. None if this system does not tell.
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
