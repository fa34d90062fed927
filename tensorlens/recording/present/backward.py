"""Presents the cost of backward by forward line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tensorlens.recording.moments import BackwardCost
from tensorlens.recording.present.instants import (
    LINES_SHOWN,
    backward_rows,
    line_place,
    lines_limit,
    source_of,
)
from tensorlens.recording.present.modules import module_rows
from tensorlens.recording.present.remarks import backward_title
from tensorlens.recording.present.tables import (
    line_cells,
    line_columns,
    module_table,
    more_rows,
)
from tensorlens.recording.recordings import Recording
from tensorlens.records.tensors import SourceLine
from tensorlens.render.blocks import Block, Cell, Column, Medium, Row, Section, Table
from tensorlens.render.figures import size
from tensorlens.render.view import View
from tensorlens.tensors.present.inventory import LeftOut
from tensorlens.tensors.present.tables import size_cell

_LINES_OF_A_PAGE = 30
_NODES = 4
_OF_MODULE = "Bytes handed out in backward that go back to the module"


def backward_blocks(
    recording: Recording, device: str, view: View, medium: Medium
) -> Iterator[Block]:
    """Give the table by line, and by module where that tells more."""
    costs = recording.backward(device)
    if not costs:
        return
    limit = lines_limit(view) if medium == "text" else LINES_SHOWN
    lines = _LINES_OF_A_PAGE if medium == "page" else limit
    blocks: list[Block] = [_table(recording, costs, lines, medium)]
    by_line: dict[SourceLine | None, int] = {cost.line: cost.nbytes for cost in costs}
    modules, hidden = module_rows(by_line, recording.backward_modules(device), limit)
    whole = sum(by_line.values())
    if modules:
        blocks.append(module_table(modules, hidden, whole, _OF_MODULE))
    title = f"{backward_title(recording)}: {size(whole)}"
    yield Section(tuple(blocks), title, device, is_parted=True)


def _table(
    recording: Recording, costs: Sequence[BackwardCost], limit: int | None, medium: Medium
) -> Table:
    shown = costs if limit is None else costs[:limit]
    most = max(cost.nbytes for cost in shown)
    details: list[tuple[str, ...]] = []
    figures: list[tuple[str | Cell, ...]] = []
    lines: list[tuple[Cell, str]] = []
    few = min(LINES_SHOWN, limit) if limit is not None else None
    for cost, rows in zip(shown, backward_rows(recording.log, shown, few), strict=True):
        figures.append((size_cell(cost.nbytes, most), size(cost.kept), size(cost.peak)))
        figures += [(size_cell(row.nbytes, most), "", "") for row in rows[1:]]
        lines += map(line_cells, rows)
        details += [() if medium == "text" else _nodes(cost), *(() for _ in rows[1:])]
        for line, nbytes in cost.alloc_sites.items():
            figures.append((size_cell(nbytes, most), "", ""))
            lines.append((Cell(f"of it {line_place(line)}"), source_of(recording.log, line)))
            details.append(())
    columns = (
        Column("Handed out", tip="Bytes handed out while the nodes that the line made ran"),
        Column("Kept", tip="Of it, what outlived the backward pass"),
        Column("Peak", tip="The most of it that was resident at once"),
        *line_columns(any(source for _, source in lines)),
    )
    rest = costs[len(shown) :]
    hidden = LeftOut(len(rest), sum(cost.nbytes for cost in rest), "") if rest else None
    return Table(
        columns,
        tuple(
            Row((*sizes, *line)[: len(columns)], more)
            for sizes, line, more in zip(figures, lines, details, strict=True)
        ),
        rest=more_rows(hidden, "line"),
    )


def _nodes(cost: BackwardCost) -> tuple[str, ...]:
    """Return the nodes that ran, and the gradients that they made."""
    return tuple(filter(None, map(_largest, (cost.nodes, cost.gradients))))


def _largest(sizes: Mapping[str, int]) -> str:
    found = list(sizes.items())[:_NODES]
    return ", ".join(f"{name} {size(nbytes)}" for name, nbytes in found)
