"""Input queues and plans as HTML."""

from __future__ import annotations

from typing import TypeAlias

from tensorlens.records.plans import Plan
from tensorlens.records.queues import Queue
from tensorlens.render.html.templates import environment
from tensorlens.render.waiting import (
    PART_TITLES,
    WORKER_TITLES,
    facts,
    part_rows,
    plan_facts,
    plan_table,
    plan_title,
    remarks,
    worker_remark,
    worker_rows,
)

_Table: TypeAlias = tuple[str, tuple[str, ...], tuple[tuple[str, ...], ...], int, str]
"""Heading, titles, rows, how many columns are texts, and a remark."""


def queue_fragment(queue: Queue) -> str:
    """Return what a queue holds as one ``<div>``."""
    tables: list[_Table] = []
    if queue.parts:
        tables.append(("Where it waits", PART_TITLES, part_rows(queue), 2, ""))
    if queue.workers:
        remark = worker_remark(queue)
        tables.append(("Worker processes", WORKER_TITLES, worker_rows(queue), 2, remark))
    return _fragment(
        f"Input queue: {queue.name}", facts(queue), tables, remarks(queue), queue.provenance
    )


def plan_fragment(plan: Plan) -> str:
    """Return a plan as one ``<div>``."""
    titles, rows = plan_table(plan)
    table: _Table = ("Batch by shape", titles, rows, 0, "")
    return _fragment(plan_title(plan), plan_facts(plan), [table], (), "measured")


def _fragment(
    headline: str,
    found: tuple[tuple[str, str], ...],
    tables: list[_Table],
    said: tuple[str, ...],
    provenance: str,
) -> str:
    return (
        environment()
        .get_template("queue.html")
        .render(headline=headline, facts=found, tables=tables, remarks=said, provenance=provenance)
    )
