"""Which of a recording's blocks a page carries, so that any instant of its picture can be shown."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence

from tensorlens.recording.moments import Timeline
from tensorlens.records.events import ALLOC, START, EventLog

AT_A_POINT = 30
AT_THE_PEAK = 2000
"""So many of the largest blocks are carried at least."""


def chosen_blocks(
    log: EventLog,
    timeline: Timeline,
    made: Sequence[int],
    whole: Collection[int],
    *,
    few: int = AT_A_POINT,
    many: int = AT_THE_PEAK,
) -> list[int]:
    """Return the rows of the allocations to carry, in order.

    At each point of the timeline they are its ``few`` largest blocks or more; a block that is
    there at no point is left out.

    Args:
        log: the events.
        timeline: the points that can be shown.
        made: the rows of the device's allocations, see :func:`allocations`.
        whole: the points of which the ``many`` largest are carried.
        few: how many of the other points.
        many: how many of those points.
    """
    points, sizes, pairs = _last_rows(log, timeline), log.size, log.pair
    room = [few] * len(points)
    for point in whole:
        room[point] = many
    # the next point from each that has room still, found in ever fewer steps
    following = list(range(len(points) + 1))
    full = len(points)
    chosen = []
    for row in sorted(made, key=sizes.__getitem__, reverse=True):
        first = bisect_left(points, row)
        end = full if pairs[row] < 0 else bisect_left(points, pairs[row])
        point = _next(following, first)
        if point >= end:
            continue
        chosen.append(row)
        while point < end:
            room[point] -= 1
            if not room[point]:
                following[point] = point + 1
            point = _next(following, point + 1)
        if _next(following, 0) == full:
            break
    return sorted(chosen)


def counts(log: EventLog, timeline: Timeline, made: Sequence[int]) -> list[int]:
    """Return how many of the blocks that were handed out were resident at each point."""
    freed = sorted(pair for pair in map(log.pair.__getitem__, made) if pair >= 0)
    rows = _last_rows(log, timeline)
    return [bisect_right(made, row) - bisect_right(freed, row) for row in rows]


def _last_rows(log: EventLog, timeline: Timeline) -> list[int]:
    """Return the last event that counts at each point: at the start, all that was there before."""
    before = log.starts - 1
    return [max(row, before) for row in timeline.rows]


def allocations(log: EventLog, device: str) -> list[int]:
    """Return the rows that hand out a block of a device, those of the start included."""
    number = log.devices.index(device)
    return [
        row
        for row, (kind, each) in enumerate(zip(log.kind, log.device, strict=True))
        if each == number and kind in (START, ALLOC)
    ]


def _next(following: list[int], point: int) -> int:
    end = point
    while following[end] != end:
        end = following[end]
    while following[point] != end:
        following[point], point = end, following[point]
    return end
