"""Presents a recording: the peak of each device with its blocks and lines; growth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensorlens.recording import export
from tensorlens.recording.analysis import BackwardCost
from tensorlens.recording.present import data
from tensorlens.recording.present.moment_layout import (
    LINES_SHOWN,
    MomentLayout,
    instant_text,
    line_place,
    line_rows,
    lines_limit,
    moment_layouts,
    source_of,
)
from tensorlens.recording.present.page import PageDevice, page_device
from tensorlens.recording.present.remarks import (
    backward_title,
    culprits,
    device_remarks,
    extent,
    failures,
    recorded_by,
)
from tensorlens.recording.present.tables import (
    line_cells,
    line_columns,
    line_table,
    module_rows,
    module_table,
    resident_table,
)
from tensorlens.recording.recordings import Recording
from tensorlens.records.names import common_name, without_indices
from tensorlens.records.tensors import SourceLine
from tensorlens.render.blocks import (
    Block,
    Cell,
    Column,
    Heading,
    Markup,
    Medium,
    Note,
    Only,
    Paragraph,
    Row,
    Rows,
    Section,
    Table,
    named,
)
from tensorlens.render.figures import LeftOut, counted, more_rows, share_table, size, size_cell
from tensorlens.render.html import from_template
from tensorlens.render.pictures import role_colour
from tensorlens.render.shown import View

TITLE = "memory over time"


def rows(recording: Recording) -> Rows:
    """Return one row per event."""
    return Rows(data.COLUMNS, data.rows(recording), data.TEXT, (), ("address",))


exported, summary = export.exported, data.summary

_LINES_OF_A_PAGE = 30
_NODES = 4
_BACKWARD_OF_MODULE = "Bytes handed out in backward that go back to the module"


def backward_blocks(
    recording: Recording, device: str, view: View, medium: Medium
) -> Iterator[Block]:
    """Yield the table by line, and by module if that says more."""
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
        blocks.append(module_table(modules, hidden, whole, _BACKWARD_OF_MODULE))
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
    for cost in shown:
        models = {(cost.line, model): nbytes for model, nbytes in cost.model_lines.items()}
        rows, _ = line_rows(recording.log, {cost.line: cost.nbytes}, few, models)
        figures.append((size_cell(cost.nbytes, most), size(cost.kept), size(cost.peak)))
        figures += [(size_cell(row.nbytes, most), "", "") for row in rows[1:]]
        lines += map(line_cells, rows)
        details += [() if medium == "text" else _nodes(cost), *(() for _ in rows[1:])]
    columns = (
        Column(
            "Handed out", tip="Sum of the bytes handed out while the line's nodes ran, in all steps"
        ),
        Column("Left after", tip="Of these, what was there when its backward pass ended"),
        Column("Most at once", tip="The most of it that was resident at one instant"),
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
    """Return the nodes that ran and the gradients that they made."""
    return tuple(filter(None, map(_largest, (cost.nodes, cost.gradients))))


def _largest(sizes: Mapping[str, int]) -> str:
    families: dict[str, list[str]] = {}
    for name in sizes:
        families.setdefault(without_indices(name), []).append(name)
    found = [(sum(map(sizes.__getitem__, names)), names) for names in families.values()]
    found.sort(key=lambda each: -each[0])
    return ", ".join(map(_family, found[:_NODES]))


def _family(found: tuple[int, list[str]]) -> str:
    nbytes, names = found
    many = f" x {len(names):,}" if len(names) > 1 else ""
    return f"{common_name(names)}{many} {size(nbytes)}"


_ROWS_OF_A_CELL = 10
_ROWS_WITHOUT_SCRIPT = 40
_GROWTHS_OF_A_PAGE = 30
_LIVE_LINES: dict[str, Any] = {"name": "by-line", "is_live": True}
_RESIDENT = "Bytes resident then that are counted for the line"
_OF_MODULE = "Bytes resident then that were allocated in the module"


def blocks(recording: Recording, view: View) -> Sequence[Block]:
    """Return the report on the peak and how it came about; a page can show any instant."""
    return [
        Section(tuple(_head(recording))),
        Only(("text",), lambda: _devices(recording, view, "text")),
        Only(("cell",), lambda: _devices(recording, replace(view, top=_ROWS_OF_A_CELL), "cell")),
        Only(
            ("page",), lambda: _devices(recording, replace(view, top=_ROWS_WITHOUT_SCRIPT), "page")
        ),
        *_growth(recording, view),
        *_not_shown(recording, view),
        Only(("page",), lambda: [Markup(from_template("script.html"))]),
    ]


def _head(recording: Recording) -> Iterator[Block]:
    origin = recording.origin
    yield Heading("Memory over time", origin.provenance, origin.process)
    yield named(recorded_by(recording))
    yield Note(extent(recording), "soft")
    for failure in failures(recording):
        yield Note(failure, "error")
    for note in origin.notes:
        yield Note(note, label="note")


def _not_shown(recording: Recording, view: View) -> Iterator[Block]:
    others = [
        f"{device} (peak {size(recording.peak(device).bytes)})"
        for device in recording.devices
        if not view.shows_device(device)
    ]
    if others:
        yield Paragraph(f"Not shown: {', '.join(others)}")


def _devices(recording: Recording, view: View, medium: Medium) -> Sequence[Block]:
    return [
        Section(
            tuple(_device(recording, layout, view, medium)),
            layout.headline,
            layout.device,
            is_parted=True,
            script="tl-recording",
        )
        for layout in moment_layouts(recording, view)
    ]


def _device(
    recording: Recording, layout: MomentLayout, view: View, medium: Medium
) -> Iterator[Block]:
    whole = layout.moment.bytes
    is_live = medium == "page"
    page = PageDevice() if medium == "text" else page_device(recording, layout, is_live=is_live)
    yield from page.timeline
    largest = [] if is_live else [*culprits(layout)]
    if largest:
        yield named(largest)
    above: list[Block] = [_roles(layout, is_live=is_live)] if layout.roles else []
    lines: list[Block] = []
    if any(row.line is not None for row in layout.lines):
        table = line_table(layout.lines, layout.hidden_lines, whole, _RESIDENT)
        lines.append(replace(table, heading="By line", **(_LIVE_LINES if is_live else {})))
    elif layout.rows:
        lines.append(Note("By line: not available (no block has a Python stack)", "soft"))
    if is_live:
        yield Section((*above, *lines), is_beside=True)
    else:
        yield from above
        yield from lines
    yield resident_table(layout, view, medium)
    yield from page.data
    limit = lines_limit(view) if medium == "text" else LINES_SHOWN
    modules, hidden = module_rows(layout.moment.by_line, layout.moment.by_module, limit)
    if modules:
        table = module_table(modules, hidden, whole, _OF_MODULE)
        when = ", at the instant shown first" if is_live else ""
        yield replace(table, heading=f"By module{when}")
    yield from page.sources
    remarks = tuple(map(Note, device_remarks(recording, layout)))
    yield Section(remarks)
    yield from backward_blocks(recording, layout.device, view, medium)


def _roles(layout: MomentLayout, *, is_live: bool) -> Table:
    parts = ((role, nbytes, role_colour(role)) for role, nbytes in layout.roles)
    table = share_table("Role", parts, layout.moment.bytes)
    return replace(table, heading="By role", name="roles") if is_live else table


def _growth(recording: Recording, view: View) -> Iterator[Block]:
    marks = sorted(recording.marks, key=lambda mark: mark.row)
    if len(marks) < 2 or marks[0].row == marks[-1].row:
        return
    first, last = marks[0], marks[-1]
    growths = [each for each in recording.growth(first.row - 1, last.row - 1) if each.nbytes]
    # a release that balances a growth stands beside it, not behind all the small ones
    growths.sort(key=lambda each: -abs(each.nbytes))
    more = sum(each.nbytes for each in growths if each.nbytes > 0)
    whole = sum(each.nbytes for each in growths)
    total = size(whole, signed=True)
    if 0 < more != whole:
        total += f" ({size(more)} more, {size(more - whole)} less)"
    shown = growths if view.top is None else growths[:_GROWTHS_OF_A_PAGE]
    sources = [source_of(recording.log, each.line) for each in shown]
    most = max((abs(each.nbytes) for each in shown), default=1)
    columns = (
        *(Column("Change"), Column("Blocks"), Column("Role", "text"), Column("Line", "line")),
        *([Column("Source", "code", rank=0)] if any(sources) else []),
    )
    rows = (
        (
            Cell(
                size(each.nbytes, signed=True),
                bar=(0.0, abs(each.nbytes) / most),
                tone="growth" if each.nbytes > 0 else "release",
            ),
            *(f"{each.blocks:+,}", each.role, line_place(each.line), source),
        )
        for each, source in zip(shown, sources, strict=True)
    )
    rest = growths[len(shown) :]
    nbytes = size(sum(each.nbytes for each in rest), signed=True)
    hidden = (f"{counted(len(rest), 'more line')}, {nbytes}",) if rest else ()
    table = Table(columns, tuple(Row(row[: len(columns)]) for row in rows), rest=hidden)
    span = f"from {instant_text(marks, first)} to {instant_text(marks, last)}"
    yield Section((table,) if shown else (), f"Growth {span}: {total}")
