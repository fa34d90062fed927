"""The report of a recording: per device the peak, what was resident, which lines; growth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tensorlens.recording.present.backward import backward_blocks
from tensorlens.recording.present.instants import (
    LINES_SHOWN,
    Instant,
    growth_span,
    instants,
    left_out,
    line_place,
    lines_limit,
    source_of,
)
from tensorlens.recording.present.modules import module_rows
from tensorlens.recording.present.page import PageDevice, page_device
from tensorlens.recording.present.remarks import device_remarks, device_sources, extent
from tensorlens.recording.present.tables import line_table, module_table, resident_table
from tensorlens.recording.recordings import Recording
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
    Section,
    Table,
    named,
)
from tensorlens.render.colours import role_colour
from tensorlens.render.figures import counted, size
from tensorlens.render.html.templates import markup
from tensorlens.render.view import View
from tensorlens.tensors.present.tables import share, size_cell

_ROWS_OF_A_CELL = 10
_ROWS_WITHOUT_SCRIPT = 40
_GROWTHS_OF_A_PAGE = 30
_LIVE_LINES: dict[str, Any] = {"name": "by-line", "is_live": True}
_LIVE_MODULES: dict[str, Any] = {"name": "by-module", "is_live": True}
_RESIDENT = "Bytes resident then that are counted for the line"
_OF_MODULE = "Bytes resident then that were allocated in the module"


def report(recording: Recording, view: View) -> Sequence[Block]:
    """Return what was resident at the peak, and how it came to it; a page can show any instant."""
    return [
        Section(tuple(_head(recording))),
        Only(("text",), lambda: _devices(recording, view, "text")),
        Only(("cell",), lambda: _devices(recording, replace(view, top=_ROWS_OF_A_CELL), "cell")),
        Only(
            ("page",), lambda: _devices(recording, replace(view, top=_ROWS_WITHOUT_SCRIPT), "page")
        ),
        *_growth(recording, view),
        *_not_shown(recording, view),
        Only(("page",), lambda: [Markup(markup("script.html"))]),
    ]


def _head(recording: Recording) -> Iterator[Block]:
    origin = recording.origin
    yield Heading("Memory over time", origin.provenance, origin.process)
    yield named(device_sources(recording))
    yield Note(extent(recording), "soft")
    for note in origin.notes:
        yield Note(note, label="note")


def _not_shown(recording: Recording, view: View) -> Iterator[Block]:
    others = [f"{device} (peak {size(nbytes)})" for device, nbytes in left_out(recording, view)]
    if others:
        yield Paragraph(f"Not shown: {', '.join(others)}")


def _devices(recording: Recording, view: View, medium: Medium) -> Sequence[Block]:
    shown = []
    for instant in instants(recording, view):
        modules = module_rows(instant.moment.by_line, instant.moment.by_module, None)[0]
        page = None
        if medium != "text":
            page = page_device(
                recording, instant, is_live=medium == "page", has_modules=bool(modules)
            )
        found = tuple(_device(recording, instant, view, medium, page))
        title = instant.headline
        shown.append(Section(found, title, instant.device, is_parted=True, script="tl-recording"))
    return shown


def _device(
    recording: Recording, instant: Instant, view: View, medium: Medium, page: PageDevice | None
) -> Iterator[Block]:
    whole = instant.moment.bytes
    is_live = medium == "page"
    if page is not None:
        yield from page.timeline
        yield from page.controls
    above: list[Block] = [_roles(instant, is_live=is_live)] if instant.roles else []
    lines: list[Block] = []
    if any(row.line is not None for row in instant.lines):
        table = line_table(instant.lines, instant.hidden_lines, whole, _RESIDENT)
        lines.append(replace(table, heading="By line", **(_LIVE_LINES if is_live else {})))
    elif instant.rows:
        lines.append(Note("By line: not available (no block has a Python stack)", "soft"))
    if is_live:
        yield Section((*above, *lines), is_beside=True)
    else:
        yield from above
    yield resident_table(instant, view, medium)
    if page is not None:
        yield from page.data
    if not is_live:
        yield from lines
    limit = lines_limit(view) if medium == "text" else LINES_SHOWN
    modules, hidden = module_rows(instant.moment.by_line, instant.moment.by_module, limit)
    if modules:
        table = module_table(modules, hidden, whole, _OF_MODULE)
        yield replace(table, heading="By module", **(_LIVE_MODULES if is_live else {}))
    if page is not None:
        yield from page.sources
    remarks = tuple(map(Note, device_remarks(recording, instant)))
    yield Section(remarks)
    yield from backward_blocks(recording, instant.device, view, medium)


def _roles(instant: Instant, *, is_live: bool) -> Table:
    whole = instant.moment.bytes
    table = Table(
        (Column("Role", "text"), Column("Size"), Column("Share")),
        tuple(
            Row(
                (
                    Cell(role, swatch=role_colour(role)),
                    size_cell(nbytes, whole),
                    share(nbytes, whole),
                )
            )
            for role, nbytes in instant.roles
        ),
    )
    return replace(table, heading="By role", name="roles") if is_live else table


def _growth(recording: Recording, view: View) -> Iterator[Block]:
    span = growth_span(recording)
    if span is None:
        return
    growths = [each for each in recording.growth(span.start, span.end) if each.nbytes]
    # what balances a growth stands beside it, not behind all the small ones
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
    yield Section((table,) if shown else (), f"Growth {span.text}: {total}")
