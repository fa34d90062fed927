"""Data for the script of a recording's page: the timeline, and the blocks of any instant."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from heapq import nlargest
from typing import Any, TypeVar

from tensorlens.recording.analysis import Moment, Resident, Timeline
from tensorlens.recording.analysis.event_index import event_index
from tensorlens.recording.analysis.levels import (
    Levels,
    key_levels,
    last_rows,
    residents,
    summed_levels,
)
from tensorlens.recording.present.moment_layout import (
    LineRow,
    line_rows,
    no_line_label,
    source_of,
    start_text,
)
from tensorlens.recording.recordings import Recording
from tensorlens.records.logs.events import EventLog
from tensorlens.records.names import readable_name
from tensorlens.records.tensors import SourceLine
from tensorlens.render.html import short_text
from tensorlens.render.pictures import WIDTH, Picture, role_colour
from tensorlens.render.source import model_place, place, printable

_K = TypeVar("_K")
_MAX_LINES = 200
"""Number of lines carried, and of lines of models that they call."""
MAX_BLOCKS = 50_000
"""Number of blocks carried, the largest of the device."""
MAX_BLOCKS_OF_INSTANT = 2000
"""Number of largest blocks of the peak, and of the instant shown first, carried in any case."""


def chosen_blocks(
    log: EventLog, device: str, alloc_rows: Sequence[int], detailed: Iterable[int]
) -> list[int]:
    """Return the rows of the allocations to carry, in order.

    Args:
        log: the events.
        device: the device of the page.
        alloc_rows: the rows of the device's allocations, also of blocks from before the recording.
        detailed: the rows of events after which the largest blocks are always carried.
    """
    number, size = log.devices.index(device), log.size.__getitem__
    rows = set(nlargest(MAX_BLOCKS, alloc_rows, key=size))
    for row in detailed:
        rows.update(nlargest(MAX_BLOCKS_OF_INSTANT, residents(log, number, row), key=size))
    return sorted(rows)


def counts(log: EventLog, timeline: Timeline, alloc_rows: Sequence[int]) -> list[int]:
    """Return the number of resident blocks at each point."""
    freed = sorted(pair for pair in map(log.pair.__getitem__, alloc_rows) if pair >= 0)
    rows = last_rows(log, timeline.rows)
    return [bisect_right(alloc_rows, row) - bisect_right(freed, row) for row in rows]


def device_data(
    recording: Recording,
    timeline: Timeline,
    picture: Picture,
    alloc_rows: Sequence[int],
    shown: int,
) -> dict[str, Any]:
    """Return plain data: the columns of the points and of the blocks, texts by their number.

    A point's ``total`` and ``count`` include the blocks that are not carried.

    Args:
        recording: the recording.
        timeline: the points that can be shown.
        picture: how they are drawn.
        alloc_rows: the rows of the device's allocations.
        shown: the point that is shown first; -1 is the highest instant, which was dropped.
    """
    log = recording.log
    peak = recording.peak(timeline.device)
    detailed = {timeline.rows[point] for point in (timeline.peak, shown) if point >= 0}
    rows = chosen_blocks(log, timeline.device, alloc_rows, detailed)
    called = "At the highest instant that was kept" if peak.dropped else "At the peak"
    return {
        "device": printable(timeline.device),
        "peak": timeline.peak,
        "peakCalled": called,
        "dropped": _dropped(recording, peak) if peak.dropped else None,
        "shown": shown,
        "starts": log.starts,
        "startCalled": start_text(recording),
        "width": WIDTH,
        "from": picture.begin,
        "span": picture.span,
        "x": list(picture.xs),
        "byTime": picture.by_time,
        "time": list(timeline.times),
        "row": list(timeline.rows),
        "total": list(timeline.totals),
        "count": counts(log, timeline, alloc_rows),
        "roles": {role: list(levels) for role, levels in timeline.by_role.items()},
        "colours": {role: role_colour(role) for role in (*timeline.by_role, *peak.by_role)},
        "lines": lines_data(recording, timeline),
        "reserved": list(timeline.reserved) if timeline.reserved else None,
        "blocks": {
            "row": rows,
            "free": [log.pair[row] for row in rows],
            **_blocks(recording.blocks(rows), [log.time[row] for row in rows]),
        },
    }


def lines_data(recording: Recording, timeline: Timeline) -> list[dict[str, Any]]:
    """Return the lines with most bytes at any point, with the model lines that they call.

    ``of`` is the number of the user's line that calls a model's line, else -1; ``levels`` are the
    points where its bytes change, and the bytes from there on.
    """
    index = event_index(recording)
    keys = ((site.charged, site.model) for site in index.sites())
    levels = key_levels(recording, timeline.device, timeline.rows, keys)
    wholes: dict[SourceLine | None, list[Levels]] = {}
    for (line, _), each in levels.items():
        wholes.setdefault(line, []).append(each)
    users = _highest({line: summed_levels(each) for line, each in wholes.items()})
    numbers = {line: number for number, (line, _) in enumerate(users)}
    of_models = {
        key: each for key, each in levels.items() if key[1] is not None and key[0] in numbers
    }
    label, log = no_line_label(recording, timeline.device), recording.log
    found = []
    for line, each in users:
        row = LineRow(line, 0, source_of(log, line), label="" if line else label)
        found.append(_line(row, numbers[line], -1, each))
    for number, ((line, model), each) in enumerate(_highest(of_models), len(users)):
        row = LineRow(model, 0, source_of(log, model), is_model=True)
        found.append(_line(row, number, numbers[line], each))
    return found


def _highest(levels: Mapping[_K, Levels]) -> list[tuple[_K, Levels]]:
    """Return the levels with most bytes at any point, highest first."""
    most = {key: max((level for _, level in each), default=0) for key, each in levels.items()}
    ordered = sorted((key for key in levels if most[key]), key=lambda key: -most[key])
    return [(key, levels[key]) for key in ordered[:_MAX_LINES]]


def _line(row: LineRow, number: int, user_line: int, levels: Levels) -> dict[str, Any]:
    return {
        "number": number,
        "of": user_line,
        "isKnown": row.line is not None,
        "place": short_text(row.place.strip()),
        "source": short_text(row.source),
        "levels": [[point for point, _ in levels], [level for _, level in levels]],
    }


def _dropped(recording: Recording, peak: Moment) -> dict[str, Any]:
    """Return a dropped peak, which is no point of the timeline, with its own blocks."""
    blocks = peak.tensors[:MAX_BLOCKS_OF_INSTANT]
    alloc_times = [peak.time_ns - (block.age_ns or 0) for block in blocks]
    return {
        "time": peak.time_ns,
        "total": peak.bytes,
        "count": len(peak.tensors),
        "roles": dict(peak.by_role),
        "lines": _dropped_lines(recording, peak),
        "blocks": _blocks(blocks, alloc_times),
    }


def _dropped_lines(recording: Recording, peak: Moment) -> list[tuple[dict[str, Any], int]]:
    """Return the lines of a dropped peak as :func:`lines_data` does, with their bytes."""
    label = no_line_label(recording, peak.device)
    rows, _ = line_rows(recording.log, peak.by_line, _MAX_LINES, peak.by_model_line, label)
    found, above = [], -1
    for number, row in enumerate(rows):
        above = above if row.is_model else number
        found.append((_line(row, number, above if row.is_model else -1, ()), row.nbytes))
    return found


_TEXTS = ("name", "role", "module", "op", "phase", "type", "line", "born")


def _blocks(blocks: Sequence[Resident], alloc_times: Sequence[int]) -> dict[str, Any]:
    """Return blocks in columns, with the times of their allocations."""
    texts: dict[str, int] = {}
    columns: dict[str, list[int]] = {name: [] for name in ("size", "time", *_TEXTS)}
    line_text = cache(_line_text)
    for block, time in zip(blocks, alloc_times, strict=True):
        columns["size"].append(block.nbytes)
        # -1 for blocks from before the recording
        columns["time"].append(-1 if block.age_ns is None else time)
        shape = "" if block.shape is None else str(block.shape)
        own = {
            "name": short_text(readable_name(block.name)),
            "role": block.role,
            "module": short_text(block.module or ""),
            "op": short_text(block.op or ""),
            "phase": block.phase,
            "type": short_text(" ".join(filter(None, (block.dtype, shape)))),
            "line": line_text(block.charged, block.model_line),
            "born": line_text(block.born, None),
        }
        for name, text in own.items():
            columns[name].append(texts.setdefault(text, len(texts)))
    return {**columns, "texts": list(texts)}


def _line_text(line: SourceLine | None, model: SourceLine | None) -> str:
    return model_place(model) if model else place(line) if line else ""
