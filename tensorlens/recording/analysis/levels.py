"""Bytes of a device over a log: after each event, the highest, over time, and by segments."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tensorlens.errors import UsageError
from tensorlens.recording.analysis import Fragmentation, Timeline
from tensorlens.recording.analysis.roles import block_roles, roles_of
from tensorlens.records.logs.events import FREE, SEGMENT_ALLOC, SEGMENT_FREE, EventLog, Segment
from tensorlens.roles import BLOCK_ROLES

if TYPE_CHECKING:
    from tensorlens.recording.recordings import Recording


def residents(log: EventLog, device: int | None, row: int) -> list[int]:
    """Return the allocations of a device, or of all, that were not freed by the end of ``row``."""
    last = max(row, log.starts - 1)
    pairs = log.pair
    return [row for row in log.allocations(device) if row <= last and not 0 <= pairs[row] <= last]


def device_levels(recording: Recording, device: str) -> array[int]:
    """Return the bytes allocated on a device after each event.

    A free without its allocation in the log changes nothing.
    """
    return recording.once(("levels", device), lambda now: _device_levels(now.log, device))


def _device_levels(log: EventLog, device: str) -> array[int]:
    return array("q", accumulate(level_changes(log, log.devices.index(device))))


def level_changes(log: EventLog, device: int) -> Iterator[int]:
    """Yield the change of the bytes allocated on a device at each event."""
    sizes = log.size
    for kind, here, size, pair in zip(log.kind, log.device, sizes, log.pair, strict=True):
        if here != device:
            yield 0
        elif kind < FREE:
            yield size
        else:
            yield -sizes[pair] if kind == FREE and pair >= 0 else 0


def device_peak(recording: Recording, device: str) -> tuple[int, int]:
    """Return the highest bytes on a device among the events kept, and the row; -1 is the start."""
    return recording.once(("highest", device), lambda now: _highest(now, device))


def _highest(recording: Recording, device: str) -> tuple[int, int]:
    after = device_levels(recording, device)
    top = max(after, default=0)
    row = after.index(top) if top else -1
    return top, -1 if row < recording.log.starts else row


def times_reached(recording: Recording, device: str, level: int) -> int:
    """Return the number of times that the bytes on a device rise to a level."""
    pairs = pairwise(chain((0,), device_levels(recording, device)))
    return sum(1 for before, now in pairs if before < now == level)


def dropped_peak(recording: Recording, device: str) -> int:
    """Return the highest bytes on a device among dropped events; 0 if unknown."""
    dropped = recording.origin.dropped_peaks.get(device)
    return 0 if dropped is None else sum(dropped.size)


def peak_bytes(recording: Recording, device: str) -> int:
    """Return the highest bytes on a device, also among the events that were dropped."""
    return max(device_peak(recording, device)[0], dropped_peak(recording, device))


def first_kept_time(recording: Recording) -> int:
    """Return the time of the first kept event; 0 if none was dropped."""
    log = recording.log
    if not recording.origin.dropped:
        return 0
    return log.time[log.starts] if log.starts < len(log) else max(log.time, default=0)


def device_or_highest(recording: Recording, device: str | None) -> str:
    """Return the device, or for None the one with the highest peak."""
    known = recording.devices
    if not known:
        raise UsageError("; ".join(("the recording has no events", *recording.origin.notes)))
    if device is None:
        return max(known, key=lambda each: peak_bytes(recording, each))
    if device not in known:
        raise UsageError(f"the recording has no device {device!r}: it has {', '.join(known)}")
    return device


def has_segments(log: EventLog, device: str) -> bool:
    """Return whether the segments of a device's allocator are known."""
    if not log.segments_known or device not in log.devices:
        return False
    number = log.devices.index(device)
    return any(segment.device == device for segment in log.segments) or any(
        here == number and kind in (SEGMENT_ALLOC, SEGMENT_FREE)
        for kind, here in zip(log.kind, log.device, strict=True)
    )


def held_at(log: EventLog, device: str, rows: Iterable[int]) -> int | None:
    """Return the bytes held by blocks, remainders included; None if unknown."""
    if not has_segments(log, device):
        number = log.devices.index(device) if device in log.devices else -1
        if not any(log.device[row] == number for row in log.held):
            return None
    held, sizes = log.held, log.size
    return sum(held.get(row, sizes[row]) for row in rows)


def reserved_levels(log: EventLog, device: str) -> Sequence[int] | None:
    """Return the bytes reserved from the driver at the start and after each event.

    They are reconstructed from the segments at the end, backwards through their events.
    """
    if not has_segments(log, device):
        return None
    number = log.devices.index(device)
    signs = {SEGMENT_ALLOC: 1, SEGMENT_FREE: -1}
    changes = [
        signs.get(kind, 0) * size if here == number else 0
        for kind, size, here in zip(log.kind, log.size, log.device, strict=True)
    ]
    end = sum(segment.size for segment in log.segments if segment.device == device)
    return list(accumulate(changes, initial=end - sum(changes)))


_FREE = "inactive"


def fragmentation(recording: Recording, device: str | None = None) -> Fragmentation | None:
    """Return the use of a device's segments; None if they are unknown.

    ``reserved`` is ``held`` plus ``free``: a block that waits for a stream counts as held, parts of
    a segment without a block as free.
    """
    device = device_or_highest(recording, device)
    if not has_segments(recording.log, device):
        return None
    segments = [each for each in recording.log.segments if each.device == device]
    pieces = [_free_pieces(segment) for segment in segments]
    reserved, free = sum(each.size for each in segments), sum(map(sum, pieces))
    return Fragmentation(
        device=device,
        reserved=reserved,
        held=reserved - free,
        requested=sum(
            block.requested for each in segments for block in each.blocks if block.state != _FREE
        ),
        free=free,
        largest_free=max((piece for each in pieces for piece in each), default=0),
        inactive_split=sum(
            sum(each)
            for segment, each in zip(segments, pieces, strict=True)
            if any(block.state != _FREE for block in segment.blocks)
        ),
        segments=len(segments),
    )


def _free_pieces(segment: Segment) -> list[int]:
    unlisted = segment.size - sum(block.size for block in segment.blocks)
    free = [block.size for block in segment.blocks if block.state == _FREE]
    return [*free, unlisted] if unlisted > 0 else free


_K = TypeVar("_K")
Levels: TypeAlias = Sequence[tuple[int, int]]
"""Ascending numbers of points with the bytes from there on; 0 bytes before the first."""


def timeline(recording: Recording, device: str | None = None, points: int = 2000) -> Timeline:
    """Return a device's timeline in about ``points`` points, exact at each of them.

    If there are more events, the lowest and the highest instant of each of several equal parts are
    points. So are the start, the last event and the first highest instant. Dropped events are left
    out: the start is then the time of the first event that was kept.
    """
    if points < 1:
        raise UsageError(f"a timeline of {points} points: at least 1")
    device, log = device_or_highest(recording, device), recording.log
    number, levels = log.devices.index(device), device_levels(recording, device)
    own = _events(log, number)
    rows = [-1, *_thinned(own, levels, points)]
    start, begun = log.starts, first_kept_time(recording)
    at = last_rows(log, rows)
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

    ``rows`` are those of the timeline; ``keys`` has one key for each event, used if it allocates.
    """
    log, at = recording.log, last_rows(recording.log, rows)
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
    """Return the sum of levels, as the points where it changes with the new bytes."""
    changes: dict[int, int] = {}
    for levels in several:
        before = 0
        for point, level in levels:
            changes[point] = changes.get(point, 0) + level - before
            before = level
    return _levels(changes, max(changes, default=0) + 1)


def last_rows(log: EventLog, rows: Sequence[int]) -> list[int]:
    """Return the row up to which events count at each point; at the start the last START row."""
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
    """Return for each row the number of the first point at or after it."""
    reached = array("i")
    for point, row in enumerate(at):
        reached.extend(array("i", [point]) * (row + 1 - len(reached)))
    reached.extend(array("i", [len(at)]) * (rows - len(reached)))
    return reached
