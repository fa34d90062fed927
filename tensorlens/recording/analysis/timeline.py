"""Bytes resident over time, thinned out honestly."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from tensorlens.errors import UsageError
from tensorlens.recording.analysis.devices import beginning, chosen, device_levels, device_peak
from tensorlens.recording.analysis.event_index import Place, event_index
from tensorlens.recording.analysis.instants import roles_of
from tensorlens.recording.analysis.roles import role_codes
from tensorlens.recording.analysis.segments import reserved_levels
from tensorlens.recording.moments import Timeline
from tensorlens.recording.recordings import Recording
from tensorlens.records.events import FREE, SEGMENT_ALLOC, EventLog
from tensorlens.records.tensors import SourceLine


def timeline(recording: Recording, device: str | None = None, points: int = 2000) -> Timeline:
    """Return a device's timeline in about ``points`` points, exact at each of them.

    Where there are more events, they are cut into equally many at a time; of each part the
    lowest and the highest instant stay. The start, the last event and the first highest instant
    are always among the points. What was dropped is not: the start is when the first event was
    that was kept.

    Raises:
        UsageError: the recording knows no such device, or none at all; ``points`` is below 1.
    """
    if points < 1:
        raise UsageError(f"a timeline of {points} points: at least 1")
    device, log = chosen(recording, device), recording.log
    number, levels = log.devices.index(device), device_levels(recording, device)
    own = _events(log, number)
    rows = [-1, *_thinned(own, levels, points)]
    start, begun = log.starts, beginning(recording)
    at = [max(row, start - 1) for row in rows]
    totals = [levels[row] if row >= 0 else 0 for row in at]
    reserved = reserved_levels(log, device)
    return Timeline(
        device=device,
        times=[log.time[row] if row >= 0 else begun for row in rows],
        rows=rows,
        totals=totals,
        by_role=_by_role(recording, number, at),
        reserved=None if reserved is None else [reserved[row + 1] for row in rows],
        peak=rows.index(device_peak(recording, device)[1]),
        events=len(own) + sum(here == number for here in log.device[:start]),
    )


def line_levels(
    recording: Recording, of: Timeline
) -> dict[tuple[SourceLine | None, SourceLine | None], list[tuple[int, int]]]:
    """Return the bytes of each line over a timeline, as the points where they change and to what.

    A key is the line that blocks are counted for and None, or that line and a line of the model
    that it calls, of which the bytes are a part.
    """
    log, places = recording.log, event_index(recording)
    device = log.devices.index(of.device)
    reached = _first_point([max(row, log.starts - 1) for row in of.rows], len(log))
    last = len(of.rows)
    changes: dict[Place, dict[int, int]] = {}
    columns = zip(log.kind, log.device, log.pair, log.size, places.places(), reached, strict=True)
    for kind, here, pair, size, place, point in columns:
        if kind < FREE and here == device:
            end = reached[pair] if pair >= 0 else last
            if point < end:
                own = changes.setdefault(place, {})
                own[point] = own.get(point, 0) + size
                own[end] = own.get(end, 0) - size
    sums: dict[tuple[SourceLine | None, SourceLine | None], dict[int, int]] = {}
    for place, own in changes.items():
        charged, model = places.charged[place], places.model[place]
        for key in ((charged, None), (charged, model))[: 1 if model is None else 2]:
            whole = sums.setdefault(key, {})
            for point, nbytes in own.items():
                whole[point] = whole.get(point, 0) + nbytes
    return {key: _levels(each, last) for key, each in sums.items()}


def _levels(changes: dict[int, int], last: int) -> list[tuple[int, int]]:
    found, level = [], 0
    for point, change in sorted(changes.items()):
        level += change
        if change and point < last:
            found.append((point, level))
    return found


def _events(log: EventLog, device: int) -> Sequence[int]:
    """Return the allocations and frees of a device after the start."""
    start = log.starts
    return array(
        "i",
        (
            row
            for row, (kind, here) in enumerate(zip(log.kind, log.device, strict=True))
            if here == device and kind < SEGMENT_ALLOC and row >= start
        ),
    )


def _thinned(rows: Sequence[int], levels: Sequence[int], points: int) -> list[int]:
    """Return the rows to keep, in order."""
    if len(rows) <= points:
        return list(rows)
    parts = max(1, points // 2)
    kept = {rows[-1]}
    for part in range(parts):
        here = rows[len(rows) * part // parts : len(rows) * (part + 1) // parts]
        kept.add(min(here, key=levels.__getitem__))
        kept.add(max(here, key=levels.__getitem__))
    return sorted(kept)


def _by_role(recording: Recording, device: int, at: Sequence[int]) -> dict[str, list[int]]:
    """Return the bytes of each role after each of some rows, which rise."""
    log = recording.log
    codes, names = recording.once(
        "role codes", lambda: role_codes(roles_of(recording), event_index(recording))
    )
    reached = _first_point(at, len(log))
    changes = [[0] * (len(at) + 1) for _ in names]
    columns = zip(log.kind, log.device, log.pair, log.size, codes, reached, strict=True)
    for kind, here, pair, size, code, point in columns:
        if kind < FREE and here == device:
            changes[code][point] += size
            if pair >= 0:
                changes[code][reached[pair]] -= size
    sums = {name: list(accumulate(each[:-1])) for name, each in zip(names, changes, strict=True)}
    return {name: values for name, values in sums.items() if any(values)}


def _first_point(at: Sequence[int], rows: int) -> array[int]:
    """Return for each row the first of the points, by number, that comes after it."""
    reached = array("i")
    for point, row in enumerate(at):
        reached.extend(array("i", [point]) * (row + 1 - len(reached)))
    reached.extend(array("i", [len(at)]) * (rows - len(reached)))
    return reached
