"""Counts the batches that a program's DataLoaders ask for ahead of its loops."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import dataloader

from tensorlens.frameworks.keras.kinds import content_of
from tensorlens.frameworks.queues.batch_bytes import batch_bytes, holds_tensors
from tensorlens.frameworks.torch.loaders.queue import named, number
from tensorlens.planning.patches import wrapped
from tensorlens.planning.step_facts import PrefetchQueue


@dataclass(frozen=True, slots=True)
class _Used:
    """Batches that an iterator was seen to have asked for."""

    batches: int = 0
    nbytes: int = 0
    memory: str = ""


class LoaderWatch:
    """Watches the iterators over DataLoaders."""

    def __init__(self) -> None:
        self._now: WeakKeyDictionary[Any, _Used] = WeakKeyDictionary()
        self.most: tuple[PrefetchQueue, ...] = ()
        """Those that were at work together when most was asked for ahead."""

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Look at each batch that a loop is given."""
        kind = getattr(dataloader, "_BaseDataLoaderIter", None)
        with contextlib.ExitStack() as stack:
            if kind is not None:
                stack.enter_context(wrapped(kind, "__next__", self._next))
            yield

    def _next(self, function: Any) -> Any:
        @functools.wraps(function)
        def __next__(iterator: Any) -> Any:
            asked = _asked(iterator)
            try:
                batch = function(iterator)
            except StopIteration:
                self._now.pop(iterator, None)
                raise
            # the loop goes on whatever is strange about its batches
            with contextlib.suppress(Exception):
                self._look(iterator, asked, batch)
            return batch

        return __next__

    def _look(self, iterator: Any, asked: int, batch: Any) -> None:
        content = content_of(iterator)
        nbytes = batch_bytes(batch)
        if not number(content, "_num_workers") or not nbytes:
            return
        before = self._now.get(iterator, _Used())
        self._now[iterator] = _Used(
            max(asked, before.batches),
            max(nbytes, before.nbytes),
            before.memory or _memory(content, batch),
        )
        now = tuple(_ahead(content_of(each), used) for each, used in self._now.items())
        if _nbytes(now) > _nbytes(self.most):
            self.most = now


def _asked(iterator: Any) -> int:
    """Return the batches asked for and not given: made, in work, or waiting for a worker."""
    tasks = content_of(iterator).get("_task_info")
    return len(tasks) if type(tasks) is dict else 0


def _memory(content: Any, batch: Any) -> str:
    if "_pin_memory_thread" in content:
        return "pinned memory"
    return "shared memory" if holds_tensors(batch) else "memory of the workers"


def _ahead(content: Any, used: _Used) -> PrefetchQueue:
    workers, prefetch = number(content, "_num_workers"), number(content, "_prefetch_factor")
    name = named("DataLoader", workers, prefetch)
    return PrefetchQueue(name, used.batches, workers, used.nbytes, used.memory)


def _nbytes(loaders: tuple[PrefetchQueue, ...]) -> int:
    return sum(each.batches * each.batch_nbytes for each in loaders)
