"""The memory of processes that make batches, and what of it a fork's copy-on-write has copied.

A forked worker shares the pages of its parent until one of the two writes to them. Linux tells for
each mapping which pages a process shares with nobody, not since when it has the mapping.
"""

from __future__ import annotations

import mmap
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import eq
from typing import Any

import psutil

from tensorlens.frameworks.host.process import mappings
from tensorlens.records.queues import QueueWorker

FORK = "fork"
_ENDED = "it has ended"
_NOT_LINUX = "copied pages are told by Linux alone"
_PAGES = 16
"""Pages of a mapping that are compared."""
_Reading = Callable[[psutil.Process], QueueWorker]


def workers_of(pids: Iterable[int | None], start_method: str = "") -> tuple[QueueWorker, ...]:
    """Return what each process takes; a dead one is not waited for.

    Args:
        pids: processes that this one has started.
        start_method: ``fork`` where they are to be asked what they have copied.
    """
    numbers = [pid for pid in pids if pid]
    if not numbers or start_method != FORK:
        return tuple(_worker(pid, _plain) for pid in numbers)
    if sys.platform != "linux":
        plain = (_worker(pid, _plain) for pid in numbers)
        return tuple(replace(each, missing=each.missing or _NOT_LINUX) for each in plain)
    inherited = _InheritedMappings()
    return tuple(_worker(pid, lambda each: _forked(each, inherited)) for pid in numbers)


def _worker(pid: int, read: _Reading) -> QueueWorker:
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return QueueWorker(pid, "dead", missing=_ENDED)
        try:
            return read(process)
        except psutil.AccessDenied:
            rss = int(process.memory_info().rss)
            return QueueWorker(pid, "running", rss, missing="this system lets nobody look")
    except psutil.NoSuchProcess:
        return QueueWorker(pid, "dead", missing=_ENDED)
    except (psutil.Error, OSError) as error:
        return QueueWorker(pid, "running", missing=f"psutil: {error}")


def _plain(process: psutil.Process) -> QueueWorker:
    memory = process.memory_full_info()
    rss, uss = int(memory.rss), int(memory.uss)
    pss = getattr(memory, "pss", None)
    missing = "" if pss is not None else "this system does not tell the share of shared pages"
    return QueueWorker(process.pid, "running", rss, pss, uss, max(0, rss - uss), missing=missing)


def _forked(process: psutil.Process, inherited: _InheritedMappings) -> QueueWorker:
    found: list[Any] = process.memory_maps(grouped=False)
    rss, pss = sum(each.rss for each in found), sum(each.pss for each in found)
    shared = sum(each.shared_clean + each.shared_dirty for each in found)
    copied = sum(each.private_dirty for each in inherited.among(found, process.pid))
    return QueueWorker(process.pid, "running", rss, pss, rss - shared, shared, copied)


class _InheritedMappings:
    """Compares mappings of forked processes with those of this process.

    The kernel does not tell which mappings are of before the fork. A mapping that still shares an
    anonymous page is one, for the kernel never joins a new mapping to one that came by a fork
    (``is_mergeable_anon_vma`` of ``mm/vma.c``). One that shares none is one if this process, its
    parent, has a mapping with the same addresses, or if pages at these addresses, which the parent
    may have given back in part, are alike in both: a copy that was made for a reference count has
    all other words in common. New mappings get the same addresses in both, and differ.
    """

    def __init__(self) -> None:
        self._ranges = {_range(line.partition(" ")[0]) for line in mappings()}

    def among(self, found: Sequence[Any], pid: int) -> Iterator[Any]:
        """Yield those of a process's mappings, as psutil gives them, that are of before."""
        for each in found:
            if "s" not in each.perms and each.private_dirty and self._is_inherited(each, pid):
                yield each

    def _is_inherited(self, mapping: Any, pid: int) -> bool:
        # a file's pages are shared with whoever has mapped it
        is_anonymous = mapping.path.startswith("[")
        if is_anonymous and mapping.shared_clean + mapping.shared_dirty:
            return True
        own = _range(mapping.addr)
        return own in self._ranges or _is_alike(pid, *own)


def _range(text: str) -> tuple[int, int]:
    start, _, end = text.partition("-")
    return int(start, 16), int(end, 16)


def _is_alike(pid: int, start: int, end: int) -> bool:
    """Tell whether most pages of a range that are not empty are alike here and there."""
    count = (end - start) // mmap.PAGESIZE
    alike = different = 0
    for page in range(0, count, max(1, count // _PAGES)):
        place = start + page * mmap.PAGESIZE
        own, other = _words("self", place), _words(pid, place)
        if any(own) and any(other):
            is_alike = 2 * sum(map(eq, own, other)) >= len(own)
            alike, different = alike + is_alike, different + (not is_alike)
    return alike > different


def _words(process: int | str, place: int) -> array[int]:
    """Return the words of a page of a process; none where it cannot be read."""
    words = array("Q")
    try:
        memory = os.open(f"/proc/{process}/mem", os.O_RDONLY)
        try:
            words.frombytes(os.pread(memory, mmap.PAGESIZE, place))
        finally:
            os.close(memory)
    except (OSError, ValueError, OverflowError):
        return array("Q")
    return words
