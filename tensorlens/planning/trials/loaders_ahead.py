"""Bytes that a job's loaders hold when their queues are full."""

from __future__ import annotations

import multiprocessing.process
import time
from collections.abc import Sequence
from typing import Any

from tensorlens.guards import reason
from tensorlens.heap import instances
from tensorlens.heap.attributes import MissingClass, content_of, imported
from tensorlens.records.queues import Queue

_BATCH_TIMEOUT, _FULL_TIMEOUT, _INTERVAL = 5.0, 0.1, 0.01
"""Seconds to wait for another batch, for the bytes of a full queue, and between two readings."""


def held_ahead() -> tuple[int | None, str]:
    """Return the bytes that DataLoaders with workers hold when full, or None and the reason.

    It waits until the queues are full, as long as batches come. The reason is empty if no loader
    has workers.
    """
    kind = imported("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter")
    if kind is MissingClass or not content_of(multiprocessing.process).get("_children"):
        return None, ""
    try:
        queues = _settled(instances(kind))
    except Exception as error:
        # the other figures of the trial stay
        return None, f"a loader could not be looked at: {reason(error)}"
    if not all(map(_is_full, queues)):
        return None, f"workers made no batch for {_BATCH_TIMEOUT:g} s after the last step"
    for each in queues:
        if each.nbytes is None:
            return None, each.missing.get("nbytes", "")
        if each.batches != each.max_batches:
            return None, "after the last step a loader had fewer batches left than it holds"
    known = [each.nbytes or 0 for each in queues if each.max_batches]
    return sum(known) if known else None, ""


def _settled(iterators: Sequence[Any]) -> Sequence[Queue]:
    """Return the queues once they are full or get no more batches."""
    from tensorlens.frameworks.torch.data_loader import look_at_iterator

    changed, before = 0.0, None
    while True:
        queues = [look_at_iterator(each) for each in iterators]
        found = [(each.batches, each.nbytes) for each in queues]
        now = time.monotonic()
        if found != before:
            changed, before = now, found
        # a batch is announced before it is complete in shared memory
        timeout = _FULL_TIMEOUT if all(map(_is_full, queues)) else _BATCH_TIMEOUT
        if now >= changed + timeout:
            return queues
        time.sleep(_INTERVAL)


def _is_full(queue: Queue) -> bool:
    """Tell whether no further batch is expected, or waiting is of no use as that is unknown."""
    return not queue.in_work and not queue.waiting
