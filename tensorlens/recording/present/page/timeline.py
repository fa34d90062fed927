"""A timeline as a picture: bytes over time, stacked by role, as SVG that needs no script."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from tensorlens.recording.moments import Timeline
from tensorlens.recording.present.instants import has_times
from tensorlens.recording.recordings import Recording
from tensorlens.render.colours import PHASE_COLOURS, STACKED, role_colour
from tensorlens.render.figures import byte_step, counted, duration, size
from tensorlens.render.pictures import HEIGHT, WIDTH, Area, Band, Label, Picture
from tensorlens.render.source import printable

_TICKS = 6
_MARKS = 60
_MARK_LABELS = 12


def picture(
    recording: Recording, timeline: Timeline, made: Sequence[int], label: str = ""
) -> Picture:
    """Return the picture of a timeline that has one point or more.

    Args:
        recording: that the timeline is of.
        timeline: what is drawn.
        made: the rows of the device's allocations.
        label: what it shows, in words.
    """
    by_time = has_times(recording.log) and timeline.times[-1] > timeline.times[0]
    values = timeline.times if by_time else timeline.rows
    first, span = values[0], max(values[-1] - values[0], 1)
    # a little more, so that what is so after the last event is seen as well
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
        # more of them would be a curtain before the picture
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
    """Return the areas, the uppermost first, so that the lower ones are drawn over it."""
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
    """Return the names of the marks, those left out that would be written over another."""
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
    """Return the phases by the last allocation up to each point; none where none is known."""
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
