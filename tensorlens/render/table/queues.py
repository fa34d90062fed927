"""Input queues and plans as rows, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tensorlens.render.waiting import shape_text

if TYPE_CHECKING:
    from tensorlens.records.plans import Plan
    from tensorlens.records.queues import Queue

Value = str | int | None

COLUMNS = (
    *("kind", "name", "where", "elements", "unit", "nbytes", "max_elements", "max_nbytes"),
    *("pid", "rss", "pss", "uss", "shared", "why"),
)
"""The columns: ``kind`` is ``queue`` for the whole, ``part`` and ``worker``."""
TEXT = ("kind", "name", "where", "unit", "why")

PLAN_COLUMNS = ("batch", "shape", "dtype", "nbytes", "factor", "held")
"""The columns: ``nbytes`` is one batch, ``held`` the full queue and the batch in use."""
PLAN_TEXT = ("shape", "dtype")


def rows(queue: Queue) -> Iterator[tuple[Value, ...]]:
    """Yield the values of :data:`COLUMNS` for the whole, its parts and its workers."""
    figures = (queue.batches, "batch", queue.nbytes, queue.max_batches, queue.max_nbytes)
    none = (None,) * 5
    yield ("queue", queue.name, None, *figures, *none, queue.rule or None)
    for part in queue.parts:
        figures = (part.elements, part.unit, part.nbytes, part.max_elements, part.max_nbytes)
        yield ("part", part.name, part.where, *figures, *none, part.missing or part.rule or None)
    for each in queue.workers:
        memory = (each.pid, each.rss, each.pss, each.uss, each.shared, each.missing or None)
        yield ("worker", each.state, None, None, None, None, None, None, *memory)


def plan_rows(plan: Plan) -> Iterator[tuple[Value, ...]]:
    """Yield the values of :data:`PLAN_COLUMNS` for every batch size and shape."""
    for batch, cells in plan.rows():
        for shape, nbytes in zip(plan.shapes, cells, strict=True):
            held = nbytes * plan.factor
            yield batch, shape_text(shape), plan.dtype, nbytes, plan.factor, held
