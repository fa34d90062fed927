"""The parts of a page or a notebook's cell that text does not have."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.recording.moments import Moment, Timeline
from tensorlens.recording.present.instants import Instant
from tensorlens.recording.present.page.data import allocations, device_data
from tensorlens.recording.present.page.heat import HeatFile, HeatRow, heat_files
from tensorlens.recording.present.page.timeline import picture
from tensorlens.recording.recordings import Recording
from tensorlens.records.tensors import SourceLine
from tensorlens.render.blocks import Block, Cell, Column, Markup, Row, Section, Table
from tensorlens.render.figures import size
from tensorlens.render.html.templates import markup

_POINTS_OF_A_CELL = 300
_POINTS_OF_A_PAGE = 20_000
_OPEN = 3
"""So many source files are unfolded."""


@dataclass(frozen=True, slots=True)
class PageDevice:
    """Markup above the table of blocks, between and below."""

    timeline: tuple[Block, ...]
    controls: tuple[Block, ...] = ()
    data: tuple[Block, ...] = ()
    """Data for the script."""
    sources: tuple[Block, ...] = ()


def page_device(
    recording: Recording, instant: Instant, *, is_live: bool, has_modules: bool
) -> PageDevice:
    """Return what a page has of a device at an instant; on a live one any other can be chosen."""
    device = instant.device
    timeline = recording.timeline(
        device, points=_POINTS_OF_A_PAGE if is_live else _POINTS_OF_A_CELL
    )
    shown = timeline.peak
    if not instant.is_peak:
        timeline, shown = _with_point(timeline, instant.moment)
    elif instant.moment.dropped:
        shown = -1
    if not len(timeline.rows):
        return PageDevice(())
    made = allocations(recording.log, device)
    drawn = picture(recording, timeline, made, f"Bytes resident over time, {instant.headline}")
    if not is_live:
        return PageDevice((drawn,))
    data: dict[str, Any] = device_data(
        recording, timeline, drawn, made, shown, has_modules=has_modules
    )
    by_line: dict[SourceLine | None, int] = {
        cost.line: cost.nbytes for cost in recording.backward(device)
    }
    files = heat_files(recording.log, instant.moment.by_line, by_line)
    return PageDevice(
        (replace(drawn, is_live=True),),
        (Markup(markup("controls.html")),),
        (Markup(markup("data.html", data=json_for_script(data))),),
        tuple(_file(file, number >= _OPEN) for number, file in enumerate(files)),
    )


def _file(file: HeatFile, is_folded: bool) -> Section:
    most = max((row.resident for row in file.rows), default=0)
    most_backward = max((row.backward for row in file.rows), default=0)
    columns = [
        Column("Line"),
        Column("Resident", tip="Bytes resident then that are counted for the line"),
        Column("Backward", tip="Bytes handed out in backward that go back to the line"),
        Column("Source", "source"),
    ]
    rows = [_heat_row(row, file.name, most, most_backward) for row in file.rows]
    if not most_backward:
        del columns[2]
        rows = [replace(row, cells=(*row.cells[:2], row.cells[3])) for row in rows]
    asides = f"{size(file.resident)} resident"
    asides += f", {size(file.backward)} in backward" if file.backward else ""
    table = Table(tuple(columns), tuple(rows), name="code")
    return Section((table,), file.name, asides=(asides,), can_fold=True, is_folded=is_folded)


def _heat_row(row: HeatRow, filename: str, most: int, most_backward: int) -> Row:
    if row.folded:
        return Row(("", "", "", f"… {row.folded:,} lines"), state="idle")
    line = f"{filename}:{row.lineno}"
    resident, backward = Cell("", line=line), Cell("")
    if row.resident:
        resident = Cell(
            size(row.resident),
            line=line,
            bar=(0.0, row.resident / most),
            is_top=row.resident == most,
        )
    if row.backward:
        bar = (0.0, row.backward / most_backward)
        backward = Cell(size(row.backward), bar=bar, tone="growth")
    is_idle = not row.resident and not row.backward
    return Row((str(row.lineno), resident, backward, row.source), state="idle" if is_idle else "")


def _with_point(timeline: Timeline, moment: Moment) -> tuple[Timeline, int]:
    """Return the timeline with a moment among its points, and its number there."""
    rows = list(timeline.rows)
    point = bisect_left(rows, moment.row)
    if point < len(rows) and rows[point] == moment.row:
        return timeline, point

    def more(values: Sequence[int], value: int) -> list[int]:
        return [*values[:point], value, *values[point:]]

    roles = dict.fromkeys([*timeline.by_role, *moment.by_role])
    nothing = [0] * len(rows)
    reserved = timeline.reserved
    return (
        replace(
            timeline,
            rows=more(rows, moment.row),
            times=more(timeline.times, moment.time_ns),
            totals=more(timeline.totals, moment.bytes),
            by_role={
                role: more(timeline.by_role.get(role, nothing), moment.by_role.get(role, 0))
                for role in roles
            },
            reserved=None if reserved is None else more(reserved, moment.reserved or 0),
            peak=timeline.peak + (point <= timeline.peak),
        ),
        point,
    )


def json_for_script(data: dict[str, Any]) -> str:
    """Return JSON that cannot end the script it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
