"""Batches that DataLoaders have made ahead of the step: counted, and how many set by an option."""

from __future__ import annotations

import contextlib
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, dataloader

from tensorlens.frameworks.queues import batch_bytes, holds_tensors
from tensorlens.frameworks.torch.loaders.queue import named, number
from tensorlens.heap.attributes import content_of
from tensorlens.planning.patches import intercepted
from tensorlens.planning.step_facts import PrefetchQueue
from tensorlens.planning.torch.options.stage import Option, Stage
from tensorlens.planning.trials.jobs import CannotApply


class LoaderWatch:
    """Watches the iterators over DataLoaders."""

    def __init__(self) -> None:
        self._now: WeakKeyDictionary[Any, PrefetchQueue] = WeakKeyDictionary()
        self.most: tuple[PrefetchQueue, ...] = ()
        """Those that were at work together when most was asked for ahead."""

    def on(self) -> contextlib.AbstractContextManager[None]:
        """Look at each batch that a loop is given."""
        return intercepted(self._next, (dataloader._BaseDataLoaderIter, "__next__"))

    def _next(self, function: Any, iterator: Any) -> Any:
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

    def _look(self, iterator: Any, asked: int, batch: Any) -> None:
        content, nbytes = content_of(iterator), batch_bytes(batch)
        workers, prefetch = number(content, "_num_workers"), number(content, "_prefetch_factor")
        if not workers or not nbytes:
            return
        before = self._now.get(iterator)
        self._now[iterator] = PrefetchQueue(
            named("DataLoader", workers, prefetch),
            asked if before is None else max(asked, before.batches),
            workers,
            nbytes if before is None else max(nbytes, before.batch_nbytes),
            _memory(content, batch) if before is None else before.memory,
        )
        now = tuple(self._now.values())
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


def _nbytes(loaders: tuple[PrefetchQueue, ...]) -> int:
    return sum(each.batches * each.batch_nbytes for each in loaders)


class PrefetchFactor(Option):
    """``prefetch_factor`` of every DataLoader with workers, when an iterator over it is made."""

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        if stage.estimated:
            raise CannotApply(
                "what loaders hold ahead is not estimated: measure it, or ask inputs.plan()"
            )
        self._loaders = 0
        self._with_workers = 0

    def building(self) -> contextlib.AbstractContextManager[Any]:
        """Set it while the step is made, and in steps that go through a loader."""
        return intercepted(self._set, (DataLoader, "__iter__"))

    stepping = building

    def _set(self, function: Any, loader: Any) -> Any:
        self._loaders += 1
        if not loader.num_workers:
            return function(loader)
        self._with_workers += 1
        before = loader.prefetch_factor
        loader.prefetch_factor = self.value
        try:
            return function(loader)
        finally:
            loader.prefetch_factor = before

    def finished(self) -> None:
        """Say so where no loader has workers."""
        if not self._loaders:
            raise CannotApply("prefetch_factor changes nothing: no DataLoader is iterated over")
        if not self._with_workers:
            raise CannotApply(
                "prefetch_factor changes nothing: no DataLoader has workers, which alone make"
                " batches ahead"
            )
