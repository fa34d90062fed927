"""The memory of processes that make batches."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from tensorlens.records.queues import QueueWorker


def workers_of(pids: Iterable[int | None]) -> tuple[QueueWorker, ...]:
    """Return what each process takes; a dead one is not waited for."""
    return tuple(_worker(pid) for pid in pids if pid)


def _worker(pid: int) -> QueueWorker:
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return QueueWorker(pid, "dead", missing="it has ended")
        try:
            memory = process.memory_full_info()
        except psutil.AccessDenied:
            rss = int(process.memory_info().rss)
            return QueueWorker(pid, "running", rss, missing="this system lets nobody look")
    except psutil.NoSuchProcess:
        return QueueWorker(pid, "dead", missing="it has ended")
    except (psutil.Error, OSError) as error:
        return QueueWorker(pid, "running", missing=f"psutil: {error}")
    rss, uss = int(memory.rss), int(memory.uss)
    pss = getattr(memory, "pss", None)
    missing = "" if pss is not None else "this system does not tell the share of shared pages"
    return QueueWorker(pid, "running", rss, pss, uss, max(0, rss - uss), missing)
