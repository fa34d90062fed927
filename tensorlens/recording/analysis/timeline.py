"""Bytes resident over time, thinned out honestly."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tensorlens.errors import UsageError
from tensorlens.recording.analysis.instants import roles_of
from tensorlens.recording.analysis.levels import (
    beginning,
    chosen,
    device_levels,
    device_peak,
    reserved_levels,
)
from tensorlens.recording.analysis.roles import block_roles
from tensorlens.recording.moments import Timeline
from tensorlens.records.events import FREE, SEGMENT_ALLOC, EventLog
from tensorlens.roles import BLOCK_ROLES

if TYPE_CHECKING:
    from tensorlens.recording.recordings import Recording

_K = TypeVar("_K")
Levels: TypeAlias = Sequence[tuple[int, int]]
"""Numbers of points, rising, each with the bytes from there on; before the first there are none."""


def timeline(recording: Recording, device: str | None = None, points: int = 2000) -> Timeline:
    """Return a device's timeline in about ``points`` points, exact at each of them.

    Where there are more events, they are cut into equally many at a time; of each part the
    lowest and the highest instant stay. The start, the last event and the first highest instant
    are always among the points. What was dropped is not: the start is when the first event was
    that was kept.
    """
    if points < 1:
        raise UsageError(f"a timeline of {points} points: at least 1")
    device, log = chosen(recording, device), recording.log
    number, levels = log.devices.index(device), device_levels(recording, device)
    own = _events(log, number)
    rows = [-1, *_thinned(own, levels, points)]
    start, begun = log.starts, beginning(recording)
    at = counted_at(log, rows)
    totals = [levels[row] if row >= 0 else 0 for row in at]
    reserved = reserved_levels(log, device)
    return Timeline(
        device=device,
        times=[log.time[row] if row >= 0 else begun for row in rows],
        rows=rows,
        totals=totals,
        by_role=_by_role(recording, device, rows),
        reserved=None if reserved is None else [reserved[row + 1] for row in rows],
        peak=rows.index(device_peak(recording, device)[1]),
        events=len(own) + sum(here == number for here in log.device[:start]),
    )


def key_levels(
    recording: Recording, device: str, rows: Sequence[int], keys: Iterable[_K]
) -> dict[_K, Levels]:
    """Return the bytes of each key over a timeline, as the points where they change and to what.

    ``rows`` are those of the timeline; ``keys`` has one for each event: that of the block which it
    hands out.
    """
    log, at = recording.log, counted_at(recording.log, rows)
    number, reached, last = log.devices.index(device), _first_point(at, len(log)), len(at)
    found: dict[_K, dict[int, int]] = {}
    columns = zip(log.kind, log.device, log.pair, log.size, keys, reached, strict=True)
    for kind, here, pair, size, key, point in columns:
        if kind < FREE and here == number:
            end = reached[pair] if pair >= 0 else last
            if point < end:
                own = found.setdefault(key, {})
                own[point] = own.get(point, 0) + size
                own[end] = own.get(end, 0) - size
    return {key: _levels(each, last) for key, each in found.items()}


def summed_levels(several: Sequence[Levels]) -> Levels:
    """Return the sum of levels, as the points where it changes and to what."""
    changes: dict[int, int] = {}
    for levels in several:
        before = 0
        for point, level in levels:
            changes[point] = changes.get(point, 0) + level - before
            before = level
    return _levels(changes, max(changes, default=0) + 1)


def counted_at(log: EventLog, rows: Sequence[int]) -> list[int]:
    """Return the last event that counts at each point: at the start, all that was there before."""
    before = log.starts - 1
    return [max(row, before) for row in rows]


def _levels(changes: Mapping[int, int], last: int) -> Levels:
    found: list[tuple[int, int]] = []
    level = 0
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


def _by_role(recording: Recording, device: str, rows: Sequence[int]) -> dict[str, list[int]]:
    """Return the bytes of each role at each point."""
    roles = recording.once("block roles", lambda now: block_roles(roles_of(now)))
    found = key_levels(recording, device, rows, roles)
    sums = {}
    for role in dict.fromkeys((*BLOCK_ROLES, *found)):
        levels = found.get(role)
        if levels:
            values = [0] * levels[0][0]
            for (point, level), (end, _) in pairwise([*levels, (len(rows), 0)]):
                values += [level] * (end - point)
            sums[role] = values
    return sums


def _first_point(at: Sequence[int], rows: int) -> array[int]:
    """Return for each row the first of the points, by number, that comes after it."""
    reached = array("i")
    for point, row in enumerate(at):
        reached.extend(array("i", [point]) * (row + 1 - len(reached)))
    reached.extend(array("i", [len(at)]) * (rows - len(reached)))
    return reached
