"""Recordings as HTML: a page with a script of our own, and a fragment without any."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.capture.present.chosen import allocations
from tensorlens.capture.present.heat import HeatFile, heat_files
from tensorlens.capture.present.instants import (
    LINES_SHOWN,
    Instant,
    Span,
    backward_rows,
    growth_span,
    instants,
    left_out,
    source_of,
)
from tensorlens.capture.present.modules import ModuleTable, module_table
from tensorlens.capture.present.page_data import device_data
from tensorlens.capture.present.remarks import (
    backward_title,
    device_remarks,
    device_sources,
    extent,
)
from tensorlens.capture.present.timeline import Picture, picture
from tensorlens.census.present.treemap import Leaf, as_script, box_path, drawn
from tensorlens.records.moments import BackwardCost, Growth, Moment, Resident, Timeline
from tensorlens.records.recordings import Recording
from tensorlens.records.snapshots import View
from tensorlens.records.tensors import SourceLine
from tensorlens.render.html.templates import environment
from tensorlens.render.source import printable

_POINTS_OF_A_FRAGMENT = 300
_ROWS_OF_A_FRAGMENT = 10
_ROWS_WITHOUT_SCRIPT = 40
_LINES_OF_A_PAGE = 30
_BOXES = 2000


@dataclass(frozen=True, slots=True)
class _Device:
    """One device as the template shows it."""

    instant: Instant
    picture: Picture | None
    remarks: tuple[str, ...]
    files: tuple[HeatFile, ...]
    backward: Sequence[BackwardCost]
    hidden_backward: Sequence[BackwardCost]
    modules: ModuleTable
    backward_modules: ModuleTable
    backward_bytes: int
    data: str
    """What the script reads, as JSON that cannot end the script it stands in."""


def recording_fragment(recording: Recording, view: View) -> str:
    """Return the recording as one ``<div>``, without any script."""
    chosen = View(
        top=_ROWS_OF_A_FRAGMENT,
        min_size=view.min_size,
        roles=view.roles,
        devices=view.devices,
        at=view.at,
    )
    devices = [
        _device(recording, instant, _POINTS_OF_A_FRAGMENT, LINES_SHOWN)
        for instant in instants(recording, chosen)
    ]
    return _rendered(recording, chosen, devices, page=False, map_="")


def recording_page(recording: Recording, view: View) -> str:
    """Return the body of a page: every instant can be chosen, rows sorted and filtered."""
    chosen = View(
        top=_ROWS_WITHOUT_SCRIPT,
        min_size=view.min_size,
        roles=view.roles,
        devices=view.devices,
        at=view.at,
    )
    shown = instants(recording, chosen)
    devices = [_device(recording, instant, None, _LINES_OF_A_PAGE) for instant in shown]
    leaves = [leaf for instant in shown for leaf in _leaves(instant)]
    return _rendered(recording, chosen, devices, page=True, map_=drawn(leaves))


def _rendered(
    recording: Recording, view: View, devices: Sequence[_Device], *, page: bool, map_: str
) -> str:
    span = growth_span(recording)
    return (
        environment()
        .get_template("recording.html")
        .render(
            recording=recording,
            header=device_sources(recording),
            extent=extent(recording),
            backward_title=backward_title(recording),
            devices=devices,
            others=left_out(recording, view),
            span=span,
            growths=_growths(recording, span),
            model_rows=lambda cost: backward_rows(recording.log, [cost], LINES_SHOWN)[0][1:],
            source_of=lambda line: source_of(recording.log, line),
            has_source=lambda rows: any(source_of(recording.log, row.line) for row in rows),
            treemap=map_,
            page=page,
        )
    )


def _growths(recording: Recording, span: Span | None) -> Sequence[Growth]:
    if span is None:
        return ()
    return [each for each in recording.growth(span.start, span.end) if each.nbytes]


def _device(recording: Recording, instant: Instant, points: int | None, limit: int) -> _Device:
    """Return a device; ``points`` of None makes it one of a page."""
    device = instant.device
    timeline = (
        recording.timeline(device) if points is None else recording.timeline(device, points=points)
    )
    shown = timeline.peak
    if not instant.is_peak:
        timeline, shown = _with_point(timeline, instant.moment)
    elif instant.moment.dropped:
        shown = -1
    made = allocations(recording.log, device)
    drawn_as = picture(recording, timeline, made) if len(timeline.rows) else None
    costs = recording.backward(device)
    by_line: dict[SourceLine | None, int] = {cost.line: cost.nbytes for cost in costs}
    data: dict[str, Any] = {}
    if points is None and drawn_as is not None:
        data = device_data(recording, timeline, drawn_as, made, shown)
    return _Device(
        instant=instant,
        picture=drawn_as,
        remarks=device_remarks(recording, instant),
        files=heat_files(recording.log, instant.moment.by_line, by_line) if data else (),
        backward=costs[:limit],
        hidden_backward=costs[limit:],
        modules=module_table(instant.moment.by_line, instant.moment.by_module, LINES_SHOWN),
        backward_modules=module_table(by_line, recording.backward_modules(device), LINES_SHOWN),
        backward_bytes=sum(by_line.values()),
        data=as_script(data) if data else "",
    )


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


def _leaves(instant: Instant) -> list[Leaf]:
    """Return the boxes of an instant: its largest blocks, and what is left of each role."""
    rest = dict(instant.moment.by_role)
    found = []
    for number, block in enumerate(instant.moment.tensors):
        if number == _BOXES or not block.nbytes:
            break
        rest[block.role] -= block.nbytes
        found.append(Leaf((instant.device, block.role, *_path(block)), block.nbytes, _text(block)))
    # a blank in front: no block is called that
    found += [
        Leaf((instant.device, role, " smaller blocks"), nbytes)
        for role, nbytes in rest.items()
        if nbytes
    ]
    return found


def _path(block: Resident) -> tuple[str, ...]:
    path = box_path(block.name, block.module, 1, block.row)
    # a name that tells where a block was made is no path
    return path if block.known or block.module else (f"{printable(block.name)}\0{block.row:x}",)


def _text(block: Resident) -> str:
    line = "" if block.charged is None else f", {block.charged}"
    return printable(f"{block.name}{line}")
