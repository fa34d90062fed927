"""The tasks of a DataLoader's iterator: which are asked for, which have come.

``_MultiProcessingDataLoaderIter`` (torch/utils/data/dataloader.py, torch 2.13) keeps in
``_task_info`` the worker of each batch that is asked for, and the batch once it has come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorlens.heap.attributes import content_of

_TRIES = 8


@dataclass(frozen=True, slots=True)
class Counts:
    """Tasks at one moment."""

    ready: int
    """Received out of order, and not given so far."""
    asked: int
    """Not received, of workers that go on."""
    results: int | None
    """In the pipe from the workers and on the way into it."""
    pinned: int
    """Received by the thread that pins, and not by the loop."""
    waiting: int | None
    """Asked for, and not taken by a worker."""


class Tasks:
    """The tasks of one iterator, given its attributes."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content
        self.has_pin_thread = "_pin_memory_thread" in content

    def settled(self) -> tuple[Counts, bool]:
        """Return counts, and whether they agree with each other: two looks that are the same."""
        before = self._counts()
        for _ in range(_TRIES):
            now = self._counts()
            if now == before:
                return now, True
            before = now
        return before, False

    def _counts(self) -> Counts:
        tasks = dict(self._content["_task_info"])
        status = items(self._content.get("_workers_status"))
        asked = [info[0] for info in tasks.values() if len(info) == 1]
        going = [at for at in asked if not 0 <= at < len(status) or status[at]]
        queues = items(self._content["_index_queues"])
        waiting = [_length(queue) for at, queue in enumerate(queues) if at in going]
        return Counts(
            ready=len(tasks) - len(asked),
            asked=len(going),
            results=_length(self._content["_worker_result_queue"]),
            pinned=(_length(self._content.get("_data_queue")) or 0) if self.has_pin_thread else 0,
            waiting=None if None in waiting else sum(each for each in waiting if each is not None),
        )

    def received(self) -> list[Any]:
        """Return the batches that came out of order."""
        tasks = dict(self._content["_task_info"])
        return [info[1] for info in tasks.values() if len(info) == 2]

    def pinned(self) -> list[Any]:
        """Return the batches that the thread which pins has copied."""
        if not self.has_pin_thread:
            return []
        waiting = content_of(self._content.get("_data_queue")).get("queue", ())
        with contextlib.suppress(RuntimeError, TypeError):
            return [item[1] for item in tuple(waiting)]
        return []


def items(value: Any) -> list[Any]:
    """Return what a plain list or tuple holds, and nothing of anything else."""
    return list(value) if type(value) in (list, tuple) else []


def _length(queue: Any) -> int | None:
    size: Callable[[], Any] | None = getattr(type(queue), "qsize", None) and queue.qsize
    try:
        return None if size is None else max(0, int(size()))
    except Exception:
        # macOS counts no semaphores, and a closed queue nothing
        return None
