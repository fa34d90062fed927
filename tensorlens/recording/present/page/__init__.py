"""The parts of a page or a notebook's cell that text does not have."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tensorlens.recording.present.instants import Instant
from tensorlens.recording.present.page.data import allocations, device_data
from tensorlens.recording.present.page.timeline import picture
from tensorlens.recording.recordings import Recording
from tensorlens.records.events import EventLog
from tensorlens.records.tensors import SourceLine
from tensorlens.render.blocks import Block, Cell, Column, Markup, Row, Section, Table
from tensorlens.render.figures import size
from tensorlens.render.html.templates import markup
from tensorlens.render.source import printable, short_path

_AROUND = 4


def heat_files(
    log: EventLog,
    resident: Mapping[SourceLine | None, int],
    backward: Mapping[SourceLine | None, int],
) -> list[Section]:
    """Return the files whose source the recording has, those with the most bytes first.

    Each line has its bytes resident at the instant, and those of backward that go back to it.
    """
    found = []
    for filename, lines in log.sources.items():
        here = _by_number(resident, filename), _by_number(backward, filename)
        if any(here):
            most = sum(map(sum, (each.values() for each in here)))
            found.append((-most, printable(short_path(filename)), lines, *here))
    found.sort(key=lambda each: each[:2])
    return [
        _file(name, lines, here, then, is_folded=place >= _OPEN)
        for place, (_, name, lines, here, then) in enumerate(found)
    ]


def _by_number(sizes: Mapping[SourceLine | None, int], filename: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for line, nbytes in sizes.items():
        if line is not None and line.filename == filename and nbytes:
            found[line.lineno] = found.get(line.lineno, 0) + nbytes
    return found


def _file(
    name: str,
    lines: Sequence[str],
    resident: Mapping[int, int],
    backward: Mapping[int, int],
    *,
    is_folded: bool,
) -> Section:
    """Return the lines with bytes and some around each, and a row for those between."""
    most, most_backward = max(resident.values(), default=0), max(backward.values(), default=0)
    numbers = {*resident, *backward}
    around = {near for number in numbers for near in range(number - _AROUND, number + _AROUND + 1)}
    rows: list[Row] = []
    last = 0
    # a line behind the file's end is of a file that has changed since
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
        # of many events the nearest that is drawn
        shown = min(bisect_left(timeline.rows, instant.moment.row), len(timeline.rows) - 1)
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
    return PageDevice(
        (replace(drawn, is_live=True),),
        (Markup(markup("controls.html")),),
        (Markup(markup("data.html", data=json_for_script(data))),),
        tuple(heat_files(recording.log, instant.moment.by_line, by_line)),
    )


_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
"""Of base64 VLQ, with which source maps write integers: the fifth bit of a digit goes on."""


def json_for_script(data: dict[str, Any]) -> str:
    """Return JSON that cannot end the script it stands in; columns of integers are packed."""
    text = json.dumps(_packed(data), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _packed(data: Any) -> Any:
    """Return data whose lists of integers are ``{"vlq": text}``, see :func:`_vlq`."""
    if isinstance(data, dict):
        return {key: _packed(value) for key, value in data.items()}
    if not isinstance(data, list):
        return data
    if data and all(type(value) is int for value in data):
        return {"vlq": _vlq(data)}
    return [_packed(value) for value in data]


def _vlq(values: Sequence[int]) -> str:
    """Return the differences of integers, each from the one before it, as base64 VLQ."""
    known: dict[int, str] = {}
    parts, last = [], 0
    for value in values:
        change, last = value - last, value
        if change not in known:
            rest, digits = (-change << 1 | 1) if change < 0 else change << 1, ""
            while rest > 31:
                digits += _DIGITS[rest & 31 | 32]
                rest >>= 5
            known[change] = digits + _DIGITS[rest]
        parts.append(known[change])
    return "".join(parts)
