"""Input queues and plans as text."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.records.plans import Plan
from tensorlens.records.queues import Queue
from tensorlens.render.text.page import Page, table
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

_LABEL = 12
_INDENT = 2


def queue_parts(queue: Queue, page: Page) -> list[str]:
    """Return the parts of the text: the figures, where they wait, the workers, remarks."""
    measured = queue.provenance == "measured"
    kind = "" if measured else f" ({page.shown(queue.provenance)})"
    lines = page.wrapped("", f"Input queue: {page.shown(queue.name)}{kind}")
    lines += _facts(facts(queue), page)
    parts = ["\n".join(lines)]
    if queue.parts:
        right = (False, False, True, True, True, True)
        parts.append(_table(PART_TITLES, part_rows(queue), right, page))
    if queue.workers:
        right = (False, False, True, True, True, True)
        cells = _table(WORKER_TITLES, worker_rows(queue), right, page)
        parts.append(f"{cells}\n" + "\n".join(page.wrapped(" " * _INDENT, worker_remark(queue))))
    said = [line for text in remarks(queue) for line in page.wrapped("  ", page.shown(text))]
    parts.append("\n".join(said))
    return parts


def plan_parts(plan: Plan, page: Page) -> list[str]:
    """Return the parts of the text: the table, and what a queue makes of it."""
    titles, rows = plan_table(plan)
    shapes = range(1, len(titles))
    # those furthest from what was asked for give way
    spare = sorted(shapes, key=lambda place: (-abs(2 * place - len(titles)), -place))[:-1]
    cells = _table(titles, rows, [True] * len(titles), page, spare)
    title = "\n".join(page.wrapped("", page.shown(plan_title(plan))))
    return [f"{title}\n{cells}", "\n".join(_facts(plan_facts(plan), page))]


def _facts(found: Sequence[tuple[str, str]], page: Page) -> list[str]:
    lines = []
    for label, text in found:
        start = " " * _INDENT + f"{label:{_LABEL}}"
        lines += page.wrapped(start, page.shown(text), len(start))
    return lines


def _table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[bool],
    page: Page,
    spare: Sequence[int] = (),
) -> str:
    shown = [[page.shown(cell) for cell in row] for row in rows]
    return "\n".join(table([titles, *shown], right, page, _INDENT, spare))
