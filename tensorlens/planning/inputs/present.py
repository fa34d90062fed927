"""Presents an input queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.records.queues import Queue, QueuePart
from tensorlens.render.blocks import (
    Block,
    Column,
    Fact,
    Heading,
    KeyValues,
    Note,
    Rows,
    Section,
    Table,
)
from tensorlens.render.figures import UNKNOWN, exact_size, size
from tensorlens.render.view import View

_PARTS = ("Part", "Where", "Now", "Bytes", "At most", "Bytes")
_WORKERS = ("Worker", "State", "Resident", "Own", "Shared", "PSS")
_TEXTS = 2
"""Columns of both that are text."""
_LABELS = {
    "batches": "batches held",
    "nbytes": "bytes held",
    "max_batches": "batches at most",
    "max_nbytes": "bytes at most",
    "batch_nbytes": "a batch",
}
_COLUMNS = (
    *("kind", "name", "where", "elements", "unit", "nbytes", "max_elements", "max_nbytes"),
    *("pid", "rss", "pss", "uss", "shared", "why"),
)
"""``kind`` is ``queue`` for the whole, ``part`` and ``worker``."""
_TEXT_COLUMNS = ("kind", "name", "where", "unit", "why")


def title(queue: Queue) -> str:
    """Return the title of a page."""
    return "what the input queue holds"


def blocks(queue: Queue, view: View) -> Sequence[Block]:
    """Return the figures, where they wait, the workers, remarks."""
    heading = Heading(f"Input queue: {queue.name}", queue.provenance)
    found: list[Block] = [Section((heading, KeyValues(tuple(_facts(queue)))))]
    if queue.parts:
        found.append(_table(_PARTS, map(_part, queue.parts), "Where it waits"))
    if queue.workers:
        cells = (
            (str(each.pid), each.state, *map(size, (each.rss, each.uss, each.shared, each.pss)))
            for each in queue.workers
        )
        found.append(_table(_WORKERS, cells, "Worker processes", _about_workers(queue)))
    return [*found, Section(tuple(map(Note, _remarks(queue))))]


def rows(queue: Queue) -> Rows:
    """Return one row for the whole, each part and each worker."""
    return Rows(_COLUMNS, _rows(queue), _TEXT_COLUMNS)


def _table(
    titles: Sequence[str], cells: Iterator[tuple[str, ...]], heading: str, remark: str = ""
) -> Table:
    columns = tuple(
        Column(each, "text" if place < _TEXTS else "figure") for place, each in enumerate(titles)
    )
    return Table(columns, tuple(cells), heading, remark=remark)


def _facts(queue: Queue) -> Iterator[Fact]:
    yield Fact("held now", _amount(queue.batches, queue.nbytes))
    yield Fact("at most", _amount(queue.max_batches, queue.max_nbytes) + _with_one(queue))
    if queue.batch_nbytes is not None:
        yield Fact("a batch", exact_size(queue.batch_nbytes))
    if queue.in_work is not None and queue.waiting is not None:
        yield Fact("besides", f"{queue.in_work} being made, {queue.waiting} asked for")
    if queue.start_method:
        yield Fact("workers", f"{len(queue.workers)}, started by {queue.start_method}")
    if queue.rule:
        yield Fact("why", queue.rule)


def _part(part: QueuePart) -> tuple[str, ...]:
    now, most = _counted(part.elements, part), _counted(part.max_elements, part)
    return part.name, part.where, now, size(part.nbytes), most, size(part.max_nbytes)


def _remarks(queue: Queue) -> tuple[str, ...]:
    """Return why figures are unknown, and the notes."""
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


def _about_workers(queue: Queue) -> str:
    """Return one line that says what a worker's own memory is."""
    if queue.start_method == "fork":
        return "own: written since the fork, and so copied, or allocated since; the rest is shared"
    return "own: what would be free without the worker"


def _amount(batches: int | None, nbytes: int | None) -> str:
    if batches is None:
        return UNKNOWN if nbytes is None else f"{size(nbytes)}, batches {UNKNOWN}"
    what = f"{batches:,} batch{'' if batches == 1 else 'es'}"
    return f"{what}; their size is not known" if nbytes is None else f"{what}, {size(nbytes)}"


def _with_one(queue: Queue) -> str:
    if queue.factor is None or not queue.batch_nbytes or queue.max_nbytes is None:
        return ""
    return f"; with the one in use {size(queue.max_nbytes + queue.batch_nbytes)}"


def _counted(count: int | None, part: QueuePart) -> str:
    if count is None:
        return UNKNOWN
    plural = {"batch": "batches"}.get(part.unit, f"{part.unit}s")
    return f"{count:,} {part.unit if count == 1 else plural}"


def _rows(queue: Queue) -> Iterator[tuple[str | int | None, ...]]:
    figures = (queue.batches, "batch", queue.nbytes, queue.max_batches, queue.max_nbytes)
    none = (None,) * 5
    yield ("queue", queue.name, None, *figures, *none, queue.rule or None)
    for part in queue.parts:
        figures = (part.elements, part.unit, part.nbytes, part.max_elements, part.max_nbytes)
        yield ("part", part.name, part.where, *figures, *none, part.missing or part.rule or None)
    for each in queue.workers:
        memory = (each.pid, each.rss, each.pss, each.uss, each.shared, each.missing or None)
        yield ("worker", each.state, None, None, None, None, None, None, *memory)
