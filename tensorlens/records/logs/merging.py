"""Merges the logs of several recorders in order of time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import merge

from tensorlens.records.logs.events import START, EventLog, Origin, Recorded


def merge_recordings(parts: Sequence[Recorded]) -> Recorded:
    """Merge recordings into one log by time, with its origin.

    Each recorder numbers the threads besides the recording's own for itself, so these get new
    numbers.

    Args:
        parts: log and origin of each recorder; facts of the process come from the first.
    """
    if len(parts) < 2:
        return parts[0] if parts else (EventLog(), Origin())
    origins = [origin for _, origin in parts]
    starts = _starts(origins)
    earliest = min(range(len(parts)), key=starts.__getitem__)
    delays = [start - starts[earliest] for start in starts]
    notes = [note for origin in origins for note in origin.notes]
    return merge_logs([log for log, _ in parts], delays), replace(
        origins[0],
        source=_sources(origins),
        started=origins[earliest].started,
        started_ns=origins[earliest].started_ns,
        dropped=sum(origin.dropped for origin in origins),
        dropped_peaks=_dropped_peaks(parts),
        notes=tuple(dict.fromkeys(notes)),
    )


def _starts(origins: Sequence[Origin]) -> list[int]:
    """Return the starts in nanoseconds of their common clock."""
    exact = [origin.started_ns for origin in origins if origin.started_ns is not None]
    if len(exact) == len(origins):
        return exact
    return [round((origin.started or 0.0) * 1e9) for origin in origins]


def _sources(origins: Sequence[Origin]) -> Mapping[str, str]:
    texts: dict[str, list[str]] = {}
    for origin in origins:
        for device, text in origin.source.items():
            texts.setdefault(device, []).append(text)
    return {device: " and ".join(dict.fromkeys(each)) for device, each in texts.items()}


def _dropped_peaks(parts: Sequence[Recorded]) -> Mapping[str, EventLog]:
    """Return the dropped peaks, without those of devices that several recorders have."""
    devices = [device for log, _ in parts for device in log.devices]
    return {
        device: log
        for _, origin in parts
        for device, log in origin.dropped_peaks.items()
        if devices.count(device) < 2
    }


def merge_logs(logs: Sequence[EventLog], delays: Sequence[int]) -> EventLog:
    """Merge logs: first the blocks from before, then all events by time.

    Events of the same time keep their order.

    Args:
        logs: the logs.
        delays: nanoseconds from the earliest start to the start of each.
    """
    whole, threads = EventLog(), 0
    columns = []
    for log, delay in zip(logs, delays, strict=True):
        columns.append(_renumbered(whole, log, delay, threads))
        threads += max((context.thread for context in log.contexts), default=0)
    keys = (
        _keys(log, delay, number)
        for number, (log, delay) in enumerate(zip(logs, delays, strict=True))
    )
    order = [*merge(*keys)]
    new_rows = [array("i", bytes(4 * len(log))) for log in logs]
    for new_row, (_, _, number, row) in enumerate(order):
        new_rows[number][row] = new_row
    for column, code in EventLog.COLUMNS.items():
        values = [columns[number][column][row] for _, _, number, row in order]
        setattr(whole, column, array(code, values))
    pairs = [(number, logs[number].pair[row]) for _, _, number, row in order]
    whole.pair = array("i", [-1 if row < 0 else new_rows[number][row] for number, row in pairs])
    for log, delay, own in zip(logs, delays, new_rows, strict=True):
        whole.held.update({own[row]: size for row, size in log.held.items()})
        whole.add_marks([(mark.name, mark.time_ns + delay) for mark in log.marks], 0)
    return whole


def _keys(log: EventLog, delay: int, number: int) -> list[tuple[bool, int, int, int]]:
    return [
        (kind != START, time + delay, number, row)
        for row, (kind, time) in enumerate(zip(log.kind, log.time, strict=True))
    ]


def _renumbered(
    whole: EventLog, log: EventLog, delay: int, threads: int
) -> dict[str, Sequence[int]]:
    """Add a log's stacks, devices, segments and so on, and return its renumbered columns."""
    adopted = whole.adopted(log, threads=threads)
    devices = [whole.devices.number(name) for name in log.devices]
    whole.segments += adopted.segments
    whole.segments_known = whole.segments_known or log.segments_known
    whole.sources.update(log.sources)
    return {
        **{column: getattr(adopted, column) for column in EventLog.COLUMNS},
        "device": [devices[number] for number in log.device],
        "time": [0 if log.was_before(row) else time + delay for row, time in enumerate(log.time)],
    }
