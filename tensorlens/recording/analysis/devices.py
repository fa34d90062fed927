"""Chooses the device that a question is about, and finds its peak."""

from __future__ import annotations

from array import array

from tensorlens.errors import UsageError
from tensorlens.recording.analysis.walk import highest, levels
from tensorlens.recording.recordings import Recording


def device_levels(recording: Recording, device: str) -> array[int]:
    """Return the bytes handed out on a device after each event."""
    log = recording.log
    number = log.devices.index(device)
    return recording.once(("levels", device), lambda: levels(log, number))


def device_peak(recording: Recording, device: str) -> tuple[int, int]:
    """Return the highest bytes on a device among the events kept, and after which row."""
    log = recording.log
    return recording.once(
        ("highest", device), lambda: highest(log, device_levels(recording, device))
    )


def dropped_peak(recording: Recording, device: str) -> int:
    """Return the highest bytes on a device before the first event that was kept; 0 unknown."""
    dropped = recording.origin.dropped_peaks.get(device)
    return 0 if dropped is None else sum(dropped.size)


def beginning(recording: Recording) -> int:
    """Return when the first event was that was kept: 0, the recording's own, if all were."""
    log = recording.log
    if not recording.origin.dropped:
        return 0
    return log.time[log.starts] if log.starts < len(log) else max(log.time, default=0)


def chosen(recording: Recording, device: str | None) -> str:
    """Return the device asked for; None asks for the one with the highest peak.

    Raises:
        UsageError: the recording knows no such device, or none at all.
    """
    known = recording.devices
    if not known:
        raise UsageError("; ".join(("the recording has no events", *recording.origin.notes)))
    if device is None:
        return max(
            known,
            key=lambda each: max(device_peak(recording, each)[0], dropped_peak(recording, each)),
        )
    if device not in known:
        raise UsageError(f"the recording has no device {device!r}: it has {', '.join(known)}")
    return device
