"""What backward took by forward line, of the recording that is on or of the last one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from tensorlens.capture.record import running
from tensorlens.records.recordings import Recording

ByLine = Mapping[str, Mapping[tuple[str, int], int]]
"""Device to ``(file name, line number)`` to bytes handed out in backward."""

_last: ByLine | None = None


def by_line() -> ByLine | None:
    """Return it of the recording that was started first of those on, else of the last to end.

    None where nothing was recorded.
    """
    recordings = running()
    return of(recordings[0]) if recordings else _last


def keep(recording: Recording) -> None:
    """Keep it of a recording that ended, and nothing else of the recording."""
    global _last
    # where memory has run out there is an error on its way already
    with suppress(MemoryError):
        _last = of(recording)


def of(recording: Recording) -> ByLine:
    """Return it of a recording."""
    found: dict[str, dict[tuple[str, int], int]] = {}
    for device in recording.devices:
        sums = found.setdefault(device, {})
        for cost in recording.backward(device):
            if cost.line is not None:
                key = cost.line.filename, cost.line.lineno
                sums[key] = sums.get(key, 0) + cost.nbytes
    return found
