"""What an input queue and a plan show, decided once for text and HTML."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.records.plans import Plan
from tensorlens.records.queues import Queue, QueuePart
from tensorlens.render.figures import UNKNOWN, exact_size, size

PART_TITLES = ("Part", "Where", "Now", "Bytes", "At most", "Bytes")
WORKER_TITLES = ("Worker", "State", "Resident", "Own", "Shared", "PSS")

_LABELS = {
    "batches": "batches held",
    "nbytes": "bytes held",
    "max_batches": "batches at most",
    "max_nbytes": "bytes at most",
    "batch_nbytes": "a batch",
}


def facts(queue: Queue) -> tuple[tuple[str, str], ...]:
    """Return what is told above the tables: labels and texts."""
    found = [
        ("held now", _amount(queue.batches, queue.nbytes)),
        ("at most", _amount(queue.max_batches, queue.max_nbytes) + _with_one(queue)),
    ]
    if queue.batch_nbytes is not None:
        found.append(("a batch", exact_size(queue.batch_nbytes)))
    if queue.in_work is not None and queue.waiting is not None:
        found.append(("besides", f"{queue.in_work} being made, {queue.waiting} asked for"))
    if queue.start_method:
        found.append(("workers", f"{len(queue.workers)}, started by {queue.start_method}"))
    if queue.rule:
        found.append(("why", queue.rule))
    return tuple(found)


def part_rows(queue: Queue) -> tuple[tuple[str, ...], ...]:
    """Return a row of texts for each part, as :data:`PART_TITLES` has them."""
    return tuple(
        (
            part.name,
            part.where,
            _counted(part.elements, part),
            size(part.nbytes),
            _counted(part.max_elements, part),
            size(part.max_nbytes),
        )
        for part in queue.parts
    )


def worker_rows(queue: Queue) -> tuple[tuple[str, ...], ...]:
    """Return a row of texts for each worker, as :data:`WORKER_TITLES` has them."""
    return tuple(
        (
            str(worker.pid),
            worker.state,
            *map(size, (worker.rss, worker.uss, worker.shared, worker.pss)),
        )
        for worker in queue.workers
    )


def remarks(queue: Queue) -> tuple[str, ...]:
    """Return what is said below the tables: why figures are unknown, and the notes."""
    reasons: dict[str, list[str]] = {}
    for name, reason in queue.missing.items():
        reasons.setdefault(reason, []).append(_LABELS.get(name, name))
    for part in queue.parts:
        if part.missing:
            labels = reasons.setdefault(part.missing, [])
            if part.name not in labels:
                labels.append(part.name)
    for worker in queue.workers:
        if worker.missing:
            reasons.setdefault(worker.missing, []).append(f"worker {worker.pid}")
    lines = [f"{UNKNOWN}: {', '.join(labels)}: {reason}" for reason, labels in reasons.items()]
    return (*lines, *(f"note: {note}" for note in queue.notes))


def worker_remark(queue: Queue) -> str:
    """Return one line that says what a worker's own memory is."""
    if not queue.workers:
        return ""
    if queue.start_method == "fork":
        return "own: written since the fork, and so copied, or allocated since; the rest is shared"
    return "own: what would be free without the worker"


def plan_title(plan: Plan) -> str:
    """Return ``Bytes of one batch, float32``."""
    return f"Bytes of one batch, {plan.dtype} ({plan.itemsize} B a number)"


def plan_table(plan: Plan) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the titles and the rows of a plan as texts."""
    titles = ("Batch", *map(shape_text, plan.shapes))
    rows = ((f"{batch:,}", *map(size, cells)) for batch, cells in plan.rows())
    return titles, tuple(rows)


def plan_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return what is told of a plan below its table."""
    full = "nothing ahead of the batch in use"
    if plan.ahead:
        full = f"{plan.ahead} ahead and the one in use: {plan.factor} times the bytes of the table"
    found = [("queue", full), ("why", plan.rule)]
    if plan.nbytes is not None and plan.held is not None and plan.shape is not None:
        asked = f"{plan.batch:,} of {shape_text(plan.shape)}: {exact_size(plan.nbytes)}"
        found.insert(0, ("a batch", asked))
        found.insert(2, ("with queue", exact_size(plan.held)))
    return tuple(found)


def shape_text(shape: Sequence[int]) -> str:
    """Return ``256x256x3``; one number is ``1``."""
    return "x".join(map(str, shape)) or "1"


def _amount(batches: int | None, nbytes: int | None) -> str:
    if batches is None:
        return UNKNOWN if nbytes is None else f"{size(nbytes)}, batches {UNKNOWN}"
    count = f"{batches:,}"
    return f"{count} batch{'' if batches == 1 else 'es'}, {size(nbytes)}"


def _with_one(queue: Queue) -> str:
    if queue.factor is None or not queue.batch_nbytes or queue.max_nbytes is None:
        return ""
    return f"; with the one in use {size(queue.max_nbytes + queue.batch_nbytes)}"


def _counted(count: int | None, part: QueuePart) -> str:
    if count is None:
        return UNKNOWN
    plural = {"batch": "batches"}.get(part.unit, f"{part.unit}s")
    return f"{count:,} {part.unit if count == 1 else plural}"
