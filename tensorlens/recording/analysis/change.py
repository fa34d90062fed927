"""Growth between two instants, and the bytes handed out for it."""

from __future__ import annotations

from collections import Counter

from tensorlens.recording.analysis.devices import chosen, device_peak
from tensorlens.recording.analysis.event_index import Place, event_index
from tensorlens.recording.analysis.instants import roles_of, row_at
from tensorlens.recording.analysis.walk import residents
from tensorlens.recording.moments import Churn, Growth
from tensorlens.recording.recordings import Recording
from tensorlens.records.events import ALLOC
from tensorlens.records.tensors import SourceLine


def growth(
    recording: Recording, start: str | int | None = None, end: str | int | None = None
) -> tuple[Growth, ...]:
    """Return what was resident more at ``end`` than at ``start``, by line and role, on all devices.

    What did not change in bytes nor in blocks is left out; the bytes add up to the whole change.

    Raises:
        UsageError: there is no such mark or event.
    """
    log = recording.log
    first = -1 if start is None else row_at(log, start, last=False)
    final = len(log) - 1 if end is None else row_at(log, end)
    before, after = residents(log, None, first), residents(log, None, final)
    stayed = set(before).intersection(after)
    roles, of = roles_of(recording), event_index(recording)
    nbytes: Counter[tuple[SourceLine | None, str]] = Counter()
    blocks: Counter[tuple[SourceLine | None, str]] = Counter()
    for sign, rows in ((-1, before), (1, after)):
        for row in rows:
            if row not in stayed:
                key = of.charged[of.place(row)], roles.role(row)
                nbytes[key] += sign * log.size[row]
                blocks[key] += sign
    found = (Growth(*key, nbytes[key], blocks[key]) for key in blocks)
    changed = (each for each in found if each.nbytes or each.blocks)
    return tuple(sorted(changed, key=lambda each: (-each.nbytes, str(each.line), each.role)))


def churn(recording: Recording, device: str | None = None) -> Churn:
    """Return how many bytes a device handed out, and its peak, by the events that were kept.

    Raises:
        UsageError: the recording knows no such device, or none at all.
    """
    device, log, of = chosen(recording, device), recording.log, event_index(recording)
    number = log.devices.index(device)
    places: dict[Place, int] = {}
    allocations = 0
    columns = zip(log.kind, log.device, log.size, log.stack, log.context, strict=True)
    for kind, here, size, stack, context in columns:
        if kind == ALLOC and here == number:
            place = stack, context
            places[place] = places.get(place, 0) + size
            allocations += 1
    by_line: Counter[SourceLine | None] = Counter()
    for place, nbytes in places.items():
        by_line[of.charged[place]] += nbytes
    return Churn(
        device=device,
        handed_out=sum(places.values()),
        allocations=allocations,
        peak=device_peak(recording, device)[0],
        by_line=dict(sorted(by_line.items(), key=lambda each: -each[1])),
    )
