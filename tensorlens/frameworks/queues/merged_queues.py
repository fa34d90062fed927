"""Queues put together: of their bounds, and several of one input as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tensorlens.records.queues import Queue


def bounded_queue(
    name: str,
    framework: str,
    limit: int | None,
    one: int | None,
    rule: str,
    *,
    no_bound: str = "",
    no_size: str,
    **others: Any,
) -> Queue:
    """Return a queue of at most ``limit`` batches of ``one`` bytes, which holds nothing now.

    Args:
        name: of the queue.
        framework: whose it is.
        limit: None where there is no bound.
        one: None where it is not known.
        rule: why it is ``limit``.
        no_bound: why there is no bound.
        no_size: why the bytes of a batch are not known.
        others: further fields.
    """
    missing = {}
    if limit is None:
        missing["max_batches"] = missing["max_nbytes"] = no_bound
    elif limit and one is None:
        missing["max_nbytes"] = no_size
    if one is None:
        missing["batch_nbytes"] = no_size
    most = 0 if limit == 0 else None if limit is None or one is None else limit * one
    return Queue(name, framework, 0, 0, limit, most, one, (), rule, missing=missing, **others)


def merge_queues(name: str, queues: Sequence[Queue]) -> Queue:
    """Return one queue for several; a figure that one of them lacks is unknown."""
    first = queues[0]
    missing: dict[str, str] = {}
    for queue in queues:
        missing.update(queue.missing)
    notes = dict.fromkeys(note for queue in queues for note in queue.notes)
    sizes = [queue.batch_nbytes for queue in queues if queue.batch_nbytes is not None]
    if sizes:
        missing.pop("batch_nbytes", None)
    return replace(
        first,
        name=name,
        batches=total(queue.batches for queue in queues),
        nbytes=total(queue.nbytes for queue in queues),
        max_batches=total(queue.max_batches for queue in queues),
        max_nbytes=total(queue.max_nbytes for queue in queues),
        batch_nbytes=max(sizes, default=None),
        parts=tuple(part for queue in queues for part in queue.parts),
        rule="; ".join(dict.fromkeys(queue.rule for queue in queues if queue.rule)),
        workers=tuple(worker for queue in queues for worker in queue.workers),
        objects=tuple(dict.fromkeys(each for queue in queues for each in queue.objects)),
        waiting=total(queue.waiting for queue in queues),
        in_work=total(queue.in_work for queue in queues),
        missing=missing,
        notes=tuple(notes),
    )


def total(figures: Iterable[int | None]) -> int | None:
    """Return the sum of figures; None where one is unknown."""
    known = list(figures)
    return None if None in known else sum(each for each in known if each is not None)
