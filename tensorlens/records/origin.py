"""The origin of a log, and the joint origin of several recorders of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorlens.records.events import EventLog
from tensorlens.records.merged_logs import LogPart, merge_logs
from tensorlens.records.run import Run, current_run


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a recording is from, for its header."""

    provenance: str = "measured"
    process: str | None = None
    source: Mapping[str, str] = field(default_factory=dict)
    """Device to what recorded: ``torch CPU allocator``, ``CUDA memory history``."""
    started: float | None = None
    """Seconds since 1970, where known."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Device to the peak that its allocator counted by itself over the same time."""
    dropped: int = 0
    """Events before the log's first, which the recorder had no more room for."""
    dropped_peaks: Mapping[str, EventLog] = field(default_factory=dict)
    """Device to what was resident at the highest instant among the dropped: START rows alone."""
    notes: tuple[str, ...] = ()
    """Notes for the reader: a fallback in use, stacks that could not be had."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)
    started_ns: int | None = field(default=None, compare=False)
    """When it started by the clock of :func:`time.monotonic_ns`, where the events' times are of
    that clock; within the process that recorded."""


Recorded = tuple[EventLog, Origin]
"""Log and origin of one recorder."""


def merge_origins(found: Sequence[Recorded], *, same_marks: bool = False) -> Recorded:
    """Return one log, its events by time, and where it is from.

    Threads other than the recording's own are numbered by each recorder for itself, and stay
    apart.

    Args:
        found: what each recorder gave; the first tells what is known only once.
        same_marks: each mark was made in all of them.
    """
    if len(found) < 2:
        return found[0] if found else (EventLog(), Origin())
    starts = _starts([origin for _, origin in found])
    begun = min(range(len(found)), key=starts.__getitem__)
    parts: list[LogPart] = []
    threads = 0
    for (log, _), start in zip(found, starts, strict=True):
        parts.append(LogPart(log, delay_ns=start - starts[begun], threads=threads))
        threads += max((context.thread for context in log.contexts), default=0)
    origins = [origin for _, origin in found]
    notes = [note for origin in origins for note in origin.notes]
    return merge_logs(parts, same_marks=same_marks), replace(
        origins[0],
        source=_sources(origins),
        started=origins[begun].started,
        started_ns=origins[begun].started_ns,
        counted=_counted(found),
        dropped=sum(origin.dropped for origin in origins),
        dropped_peaks=_dropped_peaks(origins),
        notes=tuple(dict.fromkeys([*notes, *_cautions(found)])),
    )


def _starts(origins: Sequence[Origin]) -> list[int]:
    """Return when each began, in nanoseconds, by the clock they have in common."""
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


def _shared(found: Sequence[Recorded]) -> list[str]:
    """Return the devices that have events of several recorders."""
    devices = [device for log, _ in found for device in log.devices]
    return [device for device in dict.fromkeys(devices) if devices.count(device) > 1]


def _counted(found: Sequence[Recorded]) -> Mapping[str, int]:
    """Return the peaks that allocators counted; peaks of several are not at the same instant."""
    shared = _shared(found)
    return {
        device: peak
        for _, origin in found
        for device, peak in origin.counted.items()
        if device not in shared
    }


def _dropped_peaks(origins: Sequence[Origin]) -> Mapping[str, EventLog]:
    logs: dict[str, list[EventLog]] = {}
    for origin in origins:
        for device, log in origin.dropped_peaks.items():
            logs.setdefault(device, []).append(log)
    return {
        device: each[0] if len(each) == 1 else merge_logs([LogPart(log) for log in each])
        for device, each in logs.items()
    }


def _cautions(found: Sequence[Recorded]) -> list[str]:
    """Return a line where the highest instant among the dropped is not exact."""
    dropped = [device for _, origin in found for device in origin.dropped_peaks]
    return [
        f"{device}: its events are of several recorders, some of which dropped the oldest: what "
        "was resident at the highest instant among those is not exact"
        for device in _shared(found)
        if device in dropped
    ]
