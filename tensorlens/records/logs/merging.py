"""Merges the logs of several recorders in order of time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace

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
    for log, delay in zip(logs, delays, strict=True):
        first, part = len(whole), whole.adopted(log, threads=threads)
        threads += max((context.thread for context in log.contexts), default=0)
        devices = [whole.devices.number(name) for name in log.devices]
        part.device = array("b", map(devices.__getitem__, log.device))
        times = enumerate(log.time)
        part.time = array("q", [0 if log.was_before(row) else time + delay for row, time in times])
        part.pair = array("i", [-1 if row < 0 else row + first for row in log.pair])
        for column in EventLog.COLUMNS:
            getattr(whole, column).extend(getattr(part, column))
        whole.held |= {row + first: size for row, size in log.held.items()}
        whole.segments += part.segments
        whole.segments_known = whole.segments_known or log.segments_known
        whole.sources |= log.sources
    _sort(whole)
    for log, delay in zip(logs, delays, strict=True):
        whole.add_marks([(mark.name, mark.time_ns + delay) for mark in log.marks], 0)
    return whole


def _sort(log: EventLog) -> None:
    """Put the rows of a log into their order."""
    keys = [(kind != START, time) for kind, time in zip(log.kind, log.time, strict=True)]
    order = sorted(range(len(log)), key=keys.__getitem__)
    new_rows = array("i", order)
    for new_row, row in enumerate(order):
        new_rows[row] = new_row
    for column, code in EventLog.COLUMNS.items():
        values = getattr(log, column)
        setattr(log, column, array(code, map(values.__getitem__, order)))
    log.pair = array("i", [-1 if row < 0 else new_rows[row] for row in log.pair])
    log.held = {new_rows[row]: size for row, size in log.held.items()}
