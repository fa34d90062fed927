"""The cost of backward by forward line, over all recordings of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from tensorlens.recording.analysis.backward import backward_calls
from tensorlens.recording.record import running
from tensorlens.recording.recordings import Recording

Place = tuple[str, int]
"""File name and line number."""


@dataclass(frozen=True, slots=True)
class BackwardLines:
    """Backward by line, as recordings know it."""

    nbytes: Mapping[str, Mapping[Place, int]] = field(default_factory=dict)
    """Device to line to bytes handed out in backward, what the line calls included."""
    seen: frozenset[Place] = frozenset()
    """The lines of the user that were on the stack of anything recorded."""

    def covers(self, filename: str, linenos: Iterable[int]) -> bool:
        """Tell whether any of a function's lines was recorded."""
        return any((filename, lineno) in self.seen for lineno in linenos)


_total = BackwardLines()
"""Of recordings that have ended, and none of which overlaps one that is on."""
_overlapping = BackwardLines()
"""Of those that have ended and overlap one that is on."""


def total_backward() -> BackwardLines:
    """Return it of all recordings so far.

    Recordings that overlap have the same events: of a line the largest figure counts. Those of
    recordings one after the other are added up.
    """
    return _joined(int.__add__, _total, _joined(max, _overlapping, *map(_lines, running())))


def add_backward(recording: Recording) -> None:
    """Keep it of a recording that ended, and nothing else of the recording."""
    global _total, _overlapping
    # where memory has run out there is an error on its way already
    with suppress(MemoryError):
        _overlapping = _joined(max, _overlapping, _lines(recording))
        if not running():
            _total = _joined(int.__add__, _total, _overlapping)
            _overlapping = BackwardLines()


def reset_backward() -> None:
    """Forget it of the recordings that have ended."""
    global _total, _overlapping
    _total = _overlapping = BackwardLines()


def _lines(recording: Recording) -> BackwardLines:
    found: dict[str, dict[Place, int]] = {}
    for device in recording.devices:
        sums = found.setdefault(device, {})
        for line, nbytes in backward_calls(recording, device).items():
            sums[line.filename, line.lineno] = nbytes
    frames = recording.log.stacks.frames
    return BackwardLines(
        found, frozenset((frame.filename, frame.lineno) for frame in frames if frame.user)
    )


def _joined(join: Callable[[int, int], int], *parts: BackwardLines) -> BackwardLines:
    found: dict[str, dict[Place, int]] = {}
    for part in parts:
        for device, lines in part.nbytes.items():
            sums = found.setdefault(device, {})
            for place, nbytes in lines.items():
                sums[place] = join(sums.get(place, 0), nbytes)
    return BackwardLines(found, frozenset().union(*(part.seen for part in parts)))
