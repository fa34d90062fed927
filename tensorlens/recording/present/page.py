"""Parts of a page or a notebook's cell that text does not have."""

from __future__ import annotations

import base64
import json
import math
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tensorlens.recording.analysis import Timeline
from tensorlens.recording.analysis.instants import largest_sums
from tensorlens.recording.present.moment_layout import MomentLayout, has_times
from tensorlens.recording.present.page_data import device_data
from tensorlens.recording.recordings import Recording
from tensorlens.records.logs.events import EventLog
from tensorlens.records.tensors import SourceLine
from tensorlens.render.blocks import Block, Cell, Column, Markup, Row, Section, Table
from tensorlens.render.figures import byte_step, counted, duration, size
from tensorlens.render.html import from_template
from tensorlens.render.pictures import (
    HEIGHT,
    PHASE_COLOURS,
    STACKED,
    WIDTH,
    Area,
    Band,
    Label,
    Picture,
    role_colour,
)
from tensorlens.render.source import printable, short_path

_TICKS = 6
_MARKS = 60
_MARK_LABELS = 12


def picture(
    recording: Recording, timeline: Timeline, made: Sequence[int], label: str = ""
) -> Picture:
    """Return the picture of a timeline that has one point or more.

    Args:
        recording: the recording.
        timeline: its timeline.
        made: rows of the device's allocations.
        label: description of the picture.
    """
    by_time = has_times(recording.log) and timeline.times[-1] > timeline.times[0]
    values = timeline.times if by_time else timeline.rows
    first, span = values[0], max(values[-1] - values[0], 1)
    # a little more, to show the level after the last event
    span += -(-span // 99)
    xs = tuple((value - first) * WIDTH // span for value in values)
    peak, dropped = recording.peak(timeline.device), recording.origin.dropped
    highest = max(peak.bytes, *timeline.totals, *(timeline.reserved or ()))
    step = byte_step(highest)
    top = max(math.ceil(highest / step), 1) * step
    marks = [
        (((mark.time_ns if by_time else mark.row) - first) * WIDTH // span, mark.name)
        for mark in recording.marks
    ]
    marks = [(x, name) for x, name in marks if 0 <= x <= WIDTH]
    return Picture(
        label=label,
        areas=_areas(timeline, xs, top),
        reserved=_line(timeline.reserved, xs, top) if timeline.reserved else "",
        grid=tuple(
            Label(size(value).replace(".00 ", " "), _percent(value, top))
            for value in range(0, top + 1, step)
        ),
        ticks=_ticks(first, span, by_time),
        # more would hide the picture
        marks=tuple(x for x, _ in marks) if len(marks) <= _MARKS else (),
        mark_labels=_mark_labels(marks),
        bands=_bands(recording, timeline, made, xs),
        peak_x=_percent(xs[timeline.peak], WIDTH),
        peak_y=_percent(timeline.totals[timeline.peak], top),
        dropped=counted(dropped, "earlier event") if dropped else "",
        dropped_peak=Label(size(peak.bytes), _percent(peak.bytes, top)) if peak.dropped else None,
        begin=first,
        span=span,
        xs=xs,
        by_time=by_time,
    )


def _areas(timeline: Timeline, xs: Sequence[int], top: int) -> tuple[Area, ...]:
    """Return the areas, the uppermost first, so that lower ones are drawn over it."""
    roles = [role for role in STACKED if any(timeline.by_role.get(role, ()))]
    roles += [role for role in timeline.by_role if role not in STACKED]
    level = [0] * len(xs)
    found = []
    for role in roles:
        level = [below + own for below, own in zip(level, timeline.by_role[role], strict=True)]
        path = f"M0 {HEIGHT}{_steps(level, xs, top)}V{HEIGHT}Z"
        found.append(Area(role, role_colour(role), path))
    return tuple(reversed(found))


def _line(values: Sequence[int], xs: Sequence[int], top: int) -> str:
    start = HEIGHT - values[0] * HEIGHT // top
    return f"M0 {start}{_steps(values, xs, top)}"


def _steps(values: Sequence[int], xs: Sequence[int], top: int) -> str:
    """Return path commands that hold each value until the next point, and the last to the end."""
    parts = []
    x, y = 0, -1
    for at, value in zip(xs, values, strict=True):
        height = HEIGHT - value * HEIGHT // top
        if height == y:
            continue
        if at != x:
            parts.append(f"H{at}")
            x = at
        parts.append(f"V{height}")
        y = height
    return "".join(parts) + f"H{WIDTH}"


def _ticks(first: int, span: int, by_time: bool) -> tuple[Label, ...]:
    rough = max(span // _TICKS, 1)
    unit = 10 ** (len(str(rough)) - 1)
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    values = range(-(-first // step) * step, first + span + 1, step)
    return tuple(
        Label(
            duration(value).replace(".00 ", " ") if by_time else f"event {value:,}",
            _percent(value - first, span),
        )
        for value in values
    )


def _mark_labels(marks: Sequence[tuple[int, str]]) -> tuple[Label, ...]:
    """Return the labels of marks that do not overlap."""
    found: list[Label] = []
    free_from = 0
    for x, name in marks:
        if x >= free_from:
            found.append(Label(printable(name), _percent(x, WIDTH)))
            free_from = x + WIDTH // _MARK_LABELS
    return tuple(found)


def _bands(
    recording: Recording, timeline: Timeline, made: Sequence[int], xs: Sequence[int]
) -> tuple[Band, ...]:
    """Return the phases by the last allocation up to each point; empty if all are ``other``."""
    found: list[Band] = []
    before = [bisect_right(made, row) - 1 for row in timeline.rows]
    wanted = sorted({made[each] for each in before if each >= 0})
    phases = dict(zip(wanted, (block.phase for block in recording.blocks(wanted)), strict=True))
    ends = [*xs[1:], WIDTH]
    for each, x, end in zip(before, xs, ends, strict=True):
        phase = phases[made[each]] if each >= 0 else "other"
        if found and found[-1].phase == phase:
            last = found.pop()
            x = last.x
        elif end == x:
            continue
        found.append(Band(phase, PHASE_COLOURS.get(phase, "none"), x, end - x))
    return tuple(found) if any(band.phase != "other" for band in found) else ()


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}%"


_AROUND = 4


def heat_files(
    log: EventLog,
    resident: Mapping[SourceLine | None, int],
    backward: Mapping[SourceLine | None, int],
) -> list[Section]:
    """Return the source files of the recording, those with most bytes first.

    Each line has its bytes resident at the instant, and its bytes in backward.
    """
    found = []
    for filename, lines in log.sources.items():
        here = _by_number(resident, filename), _by_number(backward, filename)
        if any(here):
            whole = sum(map(sum, (each.values() for each in here)))
            found.append((-whole, printable(short_path(filename)), lines, *here))
    found.sort(key=lambda each: each[:2])
    return [
        _file(name, lines, here, then, is_folded=number >= _OPEN)
        for number, (_, name, lines, here, then) in enumerate(found)
    ]


def _by_number(sizes: Mapping[SourceLine | None, int], filename: str) -> dict[int, int]:
    here = ((line, nbytes) for line, nbytes in sizes.items() if line and nbytes)
    return largest_sums((line.lineno, n) for line, n in here if line.filename == filename)


def _file(
    name: str,
    lines: Sequence[str],
    resident: Mapping[int, int],
    backward: Mapping[int, int],
    *,
    is_folded: bool,
) -> Section:
    """Return the lines with bytes and their neighbours, and a row for each gap."""
    most, most_backward = max(resident.values(), default=0), max(backward.values(), default=0)
    numbers = {*resident, *backward}
    around = {near for number in numbers for near in range(number - _AROUND, number + _AROUND + 1)}
    rows: list[Row] = []
    last = 0
    # a line beyond the end: the file has changed since
    for number in (*sorted(numbers.union(around.intersection(range(1, len(lines) + 1)))), None):
        end = len(lines) if number is None else min(number - 1, len(lines))
        if end > last:
            rows.append(Row(("", "", "", f"… {end - last:,} lines"), state="idle"))
        if number is None:
            break
        line, size_, later = f"{name}:{number}", resident.get(number), backward.get(number)
        here, then = Cell("", line=line), Cell("")
        if size_:
            bar = (0.0, size_ / most)
            here = Cell(size(size_), line=line, bar=bar, is_top=size_ == most)
        if later:
            then = Cell(size(later), bar=(0.0, later / most_backward), tone="growth")
        source = printable(lines[number - 1]) if 0 < number <= len(lines) else ""
        state: Literal["", "idle"] = "" if size_ or later else "idle"
        rows.append(Row((str(number), here, then, source), state=state))
        last = number
    columns: tuple[Column, ...] = (
        Column("Line"),
        Column("Resident", tip="Bytes resident then that are counted for the line"),
        Column("Backward", tip="Bytes handed out in backward that go back to the line"),
        Column("Source", "source"),
    )
    asides = f"{size(sum(resident.values()))} resident"
    if backward:
        asides += f", {size(sum(backward.values()))} in backward"
    else:
        columns = (*columns[:2], columns[3])
        rows = [replace(row, cells=(*row.cells[:2], row.cells[3])) for row in rows]
    table = Table(columns, tuple(rows), name="code")
    return Section((table,), name, asides=(asides,), can_fold=True, is_folded=is_folded)


_POINTS_OF_A_CELL = 300
_POINTS_OF_A_PAGE = 20_000
_OPEN = 3
"""Source files that are unfolded."""


@dataclass(frozen=True, slots=True)
class PageDevice:
    """Markup above, within and below the table of blocks."""

    timeline: tuple[Block, ...] = ()
    """The picture and its controls."""
    data: tuple[Block, ...] = ()
    """Data for the script."""
    sources: tuple[Block, ...] = ()


def page_device(recording: Recording, layout: MomentLayout, *, is_live: bool) -> PageDevice:
    """Return a page's parts for a device at an instant; on a live page others can be chosen."""
    device = layout.device
    timeline = recording.timeline(
        device, points=_POINTS_OF_A_PAGE if is_live else _POINTS_OF_A_CELL
    )
    shown = timeline.peak
    if not layout.is_peak:
        # the nearest event that is drawn
        shown = min(bisect_left(timeline.rows, layout.moment.row), len(timeline.rows) - 1)
    elif layout.moment.dropped:
        shown = -1
    log = recording.log
    made = log.allocations(log.devices.index(device))
    drawn = picture(recording, timeline, made, f"Bytes resident over time, {layout.headline}")
    if not is_live:
        return PageDevice((drawn,))
    moment = layout.moment
    data = device_data(recording, timeline, drawn, made, shown)
    by_line: dict[SourceLine | None, int] = {
        cost.line: cost.nbytes for cost in recording.backward(device)
    }
    return PageDevice(
        (replace(drawn, is_live=True), Markup(from_template("controls.html"))),
        (Markup(from_template("data.html", data=packed_for_script(data))),),
        tuple(heat_files(recording.log, moment.by_line, by_line)),
    )


def packed_for_script(data: dict[str, Any]) -> str:
    """Return data as base64 of zlib's compressed JSON; lists of integers become differences."""
    text = json.dumps(_with_differences(data), separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode())).decode()


def _with_differences(data: Any) -> Any:
    """Return data whose lists of integers are ``{"changes": [...]}``, each from the one before."""
    if isinstance(data, dict):
        return {key: _with_differences(value) for key, value in data.items()}
    if not isinstance(data, list):
        return data
    if data and all(type(value) is int for value in data):
        return {"changes": [value - last for value, last in zip(data, [0, *data], strict=False)]}
    return [_with_differences(value) for value in data]
