"""Resident memory at one instant: the peak, or after any event."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tensorlens.errors import UsageError
from tensorlens.recording.analysis import Moment, Resident
from tensorlens.recording.analysis.event_index import EventIndex
from tensorlens.recording.analysis.levels import (
    device_or_highest,
    device_peak,
    dropped_peak,
    first_kept_time,
    held_at,
    reserved_levels,
    residents,
    times_reached,
)
from tensorlens.recording.analysis.roles import Roles, roles_of
from tensorlens.records.logs.events import FREE, OWN_MARK, EventLog
from tensorlens.records.row_sequence import RowSequence

if TYPE_CHECKING:
    from tensorlens.recording.recordings import Recording

_K = TypeVar("_K", bound=Hashable)


class Residents(RowSequence[Resident]):
    """Blocks of a log, whose :class:`Resident` records are made on access.

    Args:
        roles: roles of the log.
        rows: rows of the allocations.
        now: instant of the ages, in nanoseconds since the recording began; None: the free of each
            block, or the last event.
    """

    __slots__ = ("_now", "_roles", "rows")

    def __init__(self, roles: Roles, rows: Sequence[int], now: int | None) -> None:
        self.rows = rows
        self._roles = roles
        self._now = now

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<{len(self)} blocks>"

    def record(self, row: int) -> Resident:
        """Return one block; ``row`` is not checked."""
        roles, row = self._roles, self.rows[row]
        log, site, label = roles.index.log, roles.index.site(row), roles.label(row)
        return Resident(
            row=row,
            name=roles.name(row),
            role=roles.role(row),
            known=label is not None,
            device=log.devices[log.device[row]],
            nbytes=log.size[row],
            born=site.born,
            charged=site.charged,
            module=roles.module(row),
            op=site.context.op,
            phase=site.phase,
            age_ns=None if log.was_before(row) else self._until(row) - log.time[row],
            stack=site.stack,
            dtype=None if label is None else label.dtype,
            shape=None if label is None else label.shape,
            model_line=site.model,
        )

    def _until(self, row: int) -> int:
        if self._now is not None:
            return self._now
        log = self._roles.index.log
        free = log.pair[row]
        return log.time[free if free >= 0 else len(log) - 1]


def peak(recording: Recording, device: str | None = None) -> Moment:
    """Return the first instant of the peak of a device; None: the device with the highest peak.

    If the peak was among the dropped events, it has the row -1.
    """
    device = device_or_highest(recording, device)
    highest, row = device_peak(recording, device)
    if dropped_peak(recording, device) > highest:
        log = recording.log.adopted(recording.origin.dropped_peaks[device])
        # the peak was reached when its newest block was made
        now = max(log.time)
        return _moment(recording, Roles(EventIndex(log)), device, range(len(log)), -1, now)
    reached = times_reached(recording, device, highest)
    return replace(moment(recording, row, device), reached=reached)


def moment(recording: Recording, row: int, device: str | None) -> Moment:
    """Return the resident memory of a device after event ``row``; -1 is the start."""
    device, log = device_or_highest(recording, device), recording.log
    found = residents(log, log.devices.index(device), row)
    now = log.time[row] if row >= log.starts else first_kept_time(recording)
    return _moment(recording, roles_of(recording), device, found, row, now)


def blocks(recording: Recording, rows: Sequence[int]) -> Sequence[Resident]:
    """Return the blocks of allocations, in the order of ``rows``; ages are those at their free."""
    log = recording.log
    for row in rows:
        if not 0 <= row < len(log) or log.kind[row] >= FREE:
            raise UsageError(f"event {row} hands out no block")
    return Residents(roles_of(recording), rows, None)


def _moment(
    recording: Recording, roles: Roles, device: str, rows: Sequence[int], row: int, now: int
) -> Moment:
    index, log = roles.index, roles.index.log
    sizes = log.size
    ordered = sorted(rows, key=sizes.__getitem__, reverse=True)
    sites = largest_sums((index.site(each), sizes[each]) for each in rows)
    dropped = log is not recording.log
    reserved = recording.once(("reserved", device), lambda each: reserved_levels(each.log, device))
    return Moment(
        device=device,
        bytes=sum(sites.values()),
        row=row,
        time_ns=now,
        tensors=Residents(roles, ordered, now),
        by_line=largest_sums((site.charged, size) for site, size in sites.items()),
        by_role=largest_sums((roles.role(each), sizes[each]) for each in rows),
        by_module=largest_sums((roles.module(each), sizes[each]) for each in rows),
        by_stack=largest_sums((site.stack, size) for site, size in sites.items()),
        by_phase=largest_sums((site.phase, size) for site, size in sites.items()),
        held=held_at(log, device, rows),
        reserved=None if dropped or reserved is None else reserved[row + 1],
        dropped=dropped,
        by_model_line=largest_sums(
            ((site.charged, site.model), size) for site, size in sites.items() if site.model
        ),
    )


def largest_sums(pairs: Iterable[tuple[_K, int]]) -> dict[_K, int]:
    """Sum the bytes of each key, largest first."""
    sums: dict[_K, int] = {}
    for key, nbytes in pairs:
        sums[key] = sums.get(key, 0) + nbytes
    return dict(sorted(sums.items(), key=lambda each: -each[1]))


def row_at(log: EventLog, instant: int | str, *, last: bool = True) -> int:
    """Return the row of the event that an instant follows; -1 is the start.

    ``instant`` is an event's number or the name of a mark. Of marks with the same name it is the
    last, or with ``last=False`` the first.
    """
    if isinstance(instant, str):
        return _of_mark(log, instant, last)
    if isinstance(instant, bool) or not hasattr(instant, "__index__"):
        raise UsageError(
            f"{instant!r} is no instant: give the number of an event or the name of a mark"
        )
    row = operator.index(instant)
    if not -1 <= row < len(log):
        raise UsageError(f"there is no event {row}: the recording has {len(log)}, from 0 on")
    return row


def _of_mark(log: EventLog, name: str, last: bool) -> int:
    rows = [mark.row - 1 for mark in log.marks if mark.name == name]
    if not rows:
        given = (mark.name for mark in log.marks if not mark.name.startswith(OWN_MARK))
        names = ", ".join(dict.fromkeys(given))
        known = f"it has {names}" if names else "it has none"
        if name in log.dropped_marks:
            raise UsageError(f"the events up to the mark {name!r} were dropped: {known}")
        raise UsageError(f"the recording has no mark {name!r}: {known}")
    return rows[-1] if last else rows[0]
