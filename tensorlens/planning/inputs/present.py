"""Presents an input queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tensorlens.frameworks.queues import total
from tensorlens.frameworks.queues.worker_memory import FORK
from tensorlens.records.queues import ObjectContainer, Queue, QueuePart, QueueWorker
from tensorlens.render.blocks import (
    Block,
    Column,
    Fact,
    Heading,
    KeyValues,
    Note,
    Row,
    Rows,
    Section,
    Table,
    labelled,
)
from tensorlens.render.figures import NOT_AVAILABLE, counted, exact_size, size
from tensorlens.render.shown import View

_PARTS = ("Part", "Where", "Now", "Bytes", "At most", "Bytes")
_WORKERS = ("Worker", "State", "RSS", "PSS", "USS")
_TEXTS = 2
"""Number of columns, the first, of both tables that are text."""
_LABELS = {
    "batches": "batches held",
    "nbytes": "bytes held",
    "max_batches": "batches at most",
    "max_nbytes": "bytes at most",
    "batch_nbytes": "a batch",
}
_COLUMNS = (
    *("kind", "name", "where", "elements", "unit", "nbytes", "max_elements", "max_nbytes"),
    *("pid", "rss", "pss", "uss", "shared", "copied", "why"),
)
"""``kind`` is ``queue`` for the whole, ``part``, ``worker``, and ``objects``."""
_TEXT_COLUMNS = ("kind", "name", "where", "unit", "why")

TITLE = "input queue"


def blocks(queue: Queue, view: View) -> Sequence[Block]:
    """Return the figures, the parts, the workers, and remarks."""
    heading = Heading(f"Input queue: {queue.name}", queue.provenance)
    found: list[Block] = [Section((heading, KeyValues(tuple(_facts(queue)))))]
    if queue.parts:
        found.append(_table(_PARTS, map(_part, queue.parts), "Where it waits"))
    if queue.workers:
        found.append(_workers(queue))
    if queue.objects:
        found.append(Section((KeyValues(labelled("may be copied", map(_cause, queue.objects))),)))
    return [*found, Section(tuple(map(Note, _remarks(queue))))]


def rows(queue: Queue) -> Rows:
    """Return one row for the whole, each part, each worker and each container of objects."""
    return Rows(_COLUMNS, _rows(queue), _TEXT_COLUMNS)


def _table(
    titles: Sequence[str], cells: Iterable[tuple[str, ...] | Row], heading: str, remark: str = ""
) -> Table:
    columns = tuple(
        Column(each, "text" if place < _TEXTS else "figure", 0 if each == "Where" else None)
        for place, each in enumerate(titles)
    )
    return Table(columns, tuple(cells), heading, remark=remark)


def _facts(queue: Queue) -> Iterator[Fact]:
    yield Fact("held now", _amount(queue.batches, queue.nbytes))
    most = _amount(queue.max_batches, queue.max_nbytes)
    if queue.factor is not None and queue.batch_nbytes and queue.max_nbytes is not None:
        most += f"; with the one in use {size(queue.max_nbytes + queue.batch_nbytes)}"
    yield Fact("at most", most)
    if queue.batch_nbytes is not None:
        yield Fact("a batch", exact_size(queue.batch_nbytes))
    if queue.in_work is not None and queue.waiting is not None:
        yield Fact("besides", f"{queue.in_work} being made, {queue.waiting} asked for")
    if queue.start_method:
        yield Fact("workers", f"{len(queue.workers)}, started by {queue.start_method}")
    if queue.rule:
        yield Fact("why", queue.rule)


def _part(part: QueuePart) -> tuple[str, ...]:
    now, most = (
        NOT_AVAILABLE if count is None else counted(count, part.unit)
        for count in (part.elements, part.max_elements)
    )
    return part.name, part.where, now, size(part.nbytes), most, size(part.max_nbytes)


def _remarks(queue: Queue) -> tuple[str, ...]:
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
    lines = [
        f"{NOT_AVAILABLE}: {', '.join(labels)}: {reason}" for reason, labels in reasons.items()
    ]
    return (*lines, *(f"note: {note}" for note in queue.notes))


def _workers(queue: Queue) -> Table:
    """Return the workers and, below several, the sums of figures that add up."""
    is_forked = queue.start_method == FORK
    titles = (*_WORKERS, "Copied", "Allocated") if is_forked else _WORKERS
    rows: list[tuple[str, ...] | Row] = [
        (str(each.pid), each.state, size(each.rss), *map(size, _additive(each, is_forked)))
        for each in queue.workers
    ]
    living = [_additive(each, is_forked) for each in queue.workers if each.state == "running"]
    if len(living) > 1:
        sums = (total(column) for column in zip(*living, strict=True))
        rows.append(Row(("all", "", "", *map(size, sums)), state="sum"))
    about = "PSS adds up; USS is a worker's own. Nothing is copied on write: no fork"
    if is_forked:
        about = (
            "PSS adds up; USS is a worker's own: copied, written since the fork, and allocated, new"
            " since. Of copied, some 10 to 20 MiB are Python's own objects in any worker"
        )
    return _table(titles, rows, "Worker processes", about)


def _additive(worker: QueueWorker, is_forked: bool) -> tuple[int | None, ...]:
    """Return the figures of a worker that can be added to those of others."""
    figures = (worker.pss, worker.uss)
    return (*figures, worker.copied, worker.allocated) if is_forked else figures


def _cause(objects: ObjectContainer) -> str:
    about = "" if objects.exact else "about "
    return (
        f"{objects.name}: {objects.kind} of {objects.length:,} {objects.elements}, {about}"
        f"{size(objects.nbytes)} of objects. A worker that reads one writes to its reference count,"
        " which copies its page. Store them in a NumPy array or a tensor"
    )


def _amount(batches: int | None, nbytes: int | None) -> str:
    if batches is None:
        return NOT_AVAILABLE if nbytes is None else f"{size(nbytes)}, batches {NOT_AVAILABLE}"
    what = counted(batches, "batch")
    return f"{what}; their size is not known" if nbytes is None else f"{what}, {size(nbytes)}"


def _rows(queue: Queue) -> Iterator[tuple[str | int | None, ...]]:
    figures = (queue.batches, "batch", queue.nbytes, queue.max_batches, queue.max_nbytes)
    none = (None,) * 6
    yield ("queue", queue.name, None, *figures, *none, queue.rule or None)
    for part in queue.parts:
        figures = (part.elements, part.unit, part.nbytes, part.max_elements, part.max_nbytes)
        yield ("part", part.name, part.where, *figures, *none, part.missing or part.rule or None)
    for each in queue.workers:
        memory = (each.pid, each.rss, each.pss, each.uss, each.shared, each.copied)
        yield ("worker", each.state, *(None,) * 6, *memory, each.missing or None)
    for held in queue.objects:
        figures = (held.length, held.elements, held.nbytes, None, None)
        yield ("objects", held.name, "this process", *figures, *none, None)
