"""Presents a plan: the bytes of batches by shape, and of a queue of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.planning.inputs.api import Plan
from tensorlens.render.blocks import Block, Column, Fact, Heading, KeyValues, Rows, Section, Table
from tensorlens.render.figures import exact_size, size
from tensorlens.render.shown import View

_COLUMNS = ("batch", "shape", "dtype", "nbytes", "factor", "held")
"""``nbytes`` is one batch, ``held`` the full queue and the batch in use."""

TITLE = "memory of batches"


def blocks(plan: Plan, view: View) -> Sequence[Block]:
    """Return the table, and the bytes of a queue."""
    heading = Heading(f"Bytes of one batch, {plan.dtype} ({plan.itemsize} B a number)")
    return [Section((heading, _table(plan))), KeyValues(tuple(_facts(plan)))]


def rows(plan: Plan) -> Rows:
    """Return one row per batch size and shape."""
    return Rows(_COLUMNS, _rows(plan), ("shape", "dtype"))


def _table(plan: Plan) -> Table:
    titles = ("Batch", *map(_shape, plan.shapes))
    count = len(titles)
    # a narrow page drops the shapes furthest from the requested one; one stays
    order = sorted(range(1, count), key=lambda place: (-abs(2 * place - count), -place))[:-1]
    ranks = {place: rank for rank, place in enumerate(order)}
    columns = (Column(each, rank=ranks.get(place)) for place, each in enumerate(titles))
    cells = ((f"{batch:,}", *map(size, figures)) for batch, figures in plan.rows())
    return Table(tuple(columns), tuple(cells))


def _facts(plan: Plan) -> Iterator[Fact]:
    if plan.shape is not None and plan.nbytes is not None:
        batch = f"{plan.batch:,} of {_shape(plan.shape)}: {exact_size(plan.nbytes)}"
        yield Fact("a batch", batch)
    full = "nothing ahead of the batch in use"
    if plan.ahead:
        full = f"{plan.ahead} ahead and the one in use: {plan.factor} times the bytes of the table"
    yield Fact("queue", full)
    if plan.held is not None:
        yield Fact("with queue", exact_size(plan.held))
    yield Fact("why", plan.rule)


def _shape(shape: Sequence[int]) -> str:
    """Return ``256x256x3``; one number is ``1``."""
    return "x".join(map(str, shape)) or "1"


def _rows(plan: Plan) -> Iterator[tuple[str | int, ...]]:
    for batch, cells in plan.rows():
        for shape, nbytes in zip(plan.shapes, cells, strict=True):
            yield batch, _shape(shape), plan.dtype, nbytes, plan.factor, nbytes * plan.factor
