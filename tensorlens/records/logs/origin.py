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
    """Device to its recorder: ``torch CPU allocator``, ``CUDA memory history``."""
    started: float | None = None
    """Start in seconds since 1970, if known."""
    dropped: int = 0
    """Number of events before the log's first, for which there was no room."""
    dropped_peaks: Mapping[str, EventLog] = field(default_factory=dict)
    """Device to the blocks at the highest dropped instant, as START rows."""
    notes: tuple[str, ...] = ()
    """Notes for the reader: a fallback in use, missing stacks."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)
    started_ns: int | None = field(default=None, compare=False)
    """Start by :func:`time.monotonic_ns`, if events use that clock; known in the recording process
    only."""


Recorded = tuple[EventLog, Origin]
"""Log and origin of one recorder."""
