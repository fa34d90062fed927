"""Recordings as counters in the trace event format, which Perfetto and Chrome open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tensorlens.recording.recordings import Recording
from tensorlens.render.source import printable
from tensorlens.units import format_bytes

POINTS = 20_000
"""About how many points each device's counter has at most; the peak is among them."""
_NS = 1000


def trace_events(recording: Recording) -> str:
    """Return bytes by role as one counter a device, and beside it what the allocator reserved.

    Marks and the peaks are instant events. Times are microseconds since the recording began.
    """
    content = {
        "displayTimeUnit": "ms",
        "otherData": {"tensorlens": recording.origin.provenance},
        "traceEvents": list(_events(recording)),
    }
    return json.dumps(content, separators=(",", ":")) + "\n"


def _events(recording: Recording) -> Iterator[dict[str, Any]]:
    yield _event(
        "M", "process_name", args={"name": printable(recording.origin.process or "memory")}
    )
    for device in recording.devices:
        yield from _counters(recording, device)
    for mark in recording.marks:
        yield _event("i", mark.name, ts=mark.time_ns / _NS, s="g")


def _counters(recording: Recording, device: str) -> Iterator[dict[str, Any]]:
    line = recording.timeline(device, POINTS)
    time = -1
    for point, total in enumerate(line.totals):
        # of two values at one time a viewer shows the later only, and it might be the peak
        time = max(line.times[point], time + 1)
        roles = {role: values[point] for role, values in line.by_role.items()}
        yield _event("C", f"{device} bytes", ts=time / _NS, args=roles)
        if line.reserved is not None:
            reserved = {"bytes": line.reserved[point]}
            yield _event("C", f"{device} reserved", ts=time / _NS, args=reserved)
        if point == line.peak:
            name = f"peak of {device}: {format_bytes(total)}"
            yield _event("i", name, ts=time / _NS, s="g", args={"bytes": total})


def _event(kind: str, name: str, **others: Any) -> dict[str, Any]:
    return {"ph": kind, "name": printable(name), "cat": "memory", "pid": 1, "tid": 1, **others}
