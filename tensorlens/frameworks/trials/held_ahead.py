"""What a trial's loaders hold ahead of the step, once their workers have made it all."""

from __future__ import annotations

import multiprocessing.process
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorlens.frameworks.census.instances import living
from tensorlens.frameworks.keras.kinds import Never, content_of, imported
from tensorlens.records.queues import Queue

_PATIENCE, _MOMENT = 5.0, 0.01
"""Seconds that are waited for one more batch, and between two looks."""


@dataclass(frozen=True, slots=True)
class HeldAhead:
    """What was counted."""

    nbytes: int | None
    missing: str = ""
    """Why it is None; empty where no loader has workers."""


def held_ahead() -> HeldAhead:
    """Return the bytes that torch's DataLoaders with workers hold when their queues are full.

    It waits until they are, as long as batches come.
    """
    kind = imported("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter")
    if kind is Never or not content_of(multiprocessing.process).get("_children"):
        return HeldAhead(None)
    try:
        return _told(_settled(living(kind)))
    except Exception as error:
        # the trial has its other figures, whatever is strange about its loaders
        return HeldAhead(None, f"a loader could not be looked at: {type(error).__name__}: {error}")


def _settled(iterators: Sequence[Any]) -> Sequence[Queue]:
    """Return the queues once they are full, or no more comes."""
    from tensorlens.frameworks.torch.queues import look_at_iterator

    queues = [look_at_iterator(each) for each in iterators]
    end = time.monotonic() + _PATIENCE
    while not all(map(_is_full, queues)) and time.monotonic() < end:
        time.sleep(_MOMENT)
        before = [each.batches for each in queues]
        queues = [look_at_iterator(each) for each in iterators]
        if [each.batches for each in queues] != before:
            end = time.monotonic() + _PATIENCE
    return queues


def _is_full(queue: Queue) -> bool:
    """Tell whether nothing more is to come; where that cannot be known there is no use waiting."""
    from tensorlens.frameworks.torch.queues import ON_THEIR_WAY

    return not queue.in_work and not queue.waiting and ON_THEIR_WAY not in queue.notes


def _told(queues: Sequence[Queue]) -> HeldAhead:
    from tensorlens.frameworks.torch.queues import ON_THEIR_WAY

    if any(ON_THEIR_WAY in each.notes for each in queues):
        return HeldAhead(None, "batches stay on their way: a pipe is too small for all of them")
    if not all(map(_is_full, queues)):
        return HeldAhead(None, f"workers made no batch for {_PATIENCE:g} s after the last step")
    reasons = [each.missing.get("nbytes", "") for each in queues if each.nbytes is None]
    if reasons:
        return HeldAhead(None, reasons[0])
    if any(each.batches != each.max_batches for each in queues):
        return HeldAhead(None, "after the last step a loader had fewer batches left than it holds")
    known = [each.nbytes for each in queues if each.max_batches]
    return HeldAhead(sum(each for each in known if each is not None) if known else None)
