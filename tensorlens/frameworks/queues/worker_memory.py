"""The memory of processes that make batches, and what of it a fork's copy-on-write has copied.

A forked worker shares the pages of its parent until one of the two writes to them. Linux tells for
each mapping which pages a process shares with nobody, not since when it has the mapping.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import psutil

from tensorlens.frameworks.queues.inherited_mappings import InheritedMappings
from tensorlens.records.queues import QueueWorker

FORK = "fork"
_ENDED = "it has ended"
_NOT_LINUX = "copied pages are told by Linux alone"
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
    inherited = InheritedMappings()
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


def _forked(process: psutil.Process, inherited: InheritedMappings) -> QueueWorker:
    mappings: list[Any] = process.memory_maps(grouped=False)
    rss, pss = sum(each.rss for each in mappings), sum(each.pss for each in mappings)
    shared = sum(each.shared_clean + each.shared_dirty for each in mappings)
    copied = sum(each.private_dirty for each in inherited.among(mappings, process.pid))
    return QueueWorker(process.pid, "running", rss, pss, rss - shared, shared, copied)
