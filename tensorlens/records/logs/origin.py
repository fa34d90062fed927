"""The origin of a log: where a recording is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorlens.records.logs.events import EventLog
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
