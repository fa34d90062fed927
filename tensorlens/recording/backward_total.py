"""The cost of backward by forward line, over all recordings of the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from tensorlens.recording.analysis.costs import backward_calls
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
"""Of recordings that have ended."""


def total_backward() -> BackwardLines:
    """Return it of all recordings so far.

    Recordings one after the other are added up. Of those that overlap, which have the same events,
    the one that ends last counts, and while some are on the one that began first.
    """
    return _sum(_total, *map(_lines, running()[:1]))


def add_backward(recording: Recording) -> None:
    """Keep it of a recording that ended, and nothing else of the recording."""
    global _total
    # where memory has run out there is an error on its way already
    with suppress(MemoryError):
        if not running():
            _total = _sum(_total, _lines(recording))


def _lines(recording: Recording) -> BackwardLines:
    return recording.once("backward lines", _lines_of)


def _lines_of(recording: Recording) -> BackwardLines:
    nbytes = {
        device: {(line.filename, line.lineno): n for line, n in sums.items()}
        for device in recording.devices
        for sums in [backward_calls(recording, device)]
    }
    frames = recording.log.stacks.frames
    return BackwardLines(
        nbytes, frozenset((frame.filename, frame.lineno) for frame in frames if frame.user)
    )


def _sum(*parts: BackwardLines) -> BackwardLines:
    sums: dict[str, Counter[Place]] = {}
    for part in parts:
        for device, lines in part.nbytes.items():
            sums.setdefault(device, Counter()).update(lines)
    return BackwardLines(sums, frozenset().union(*(part.seen for part in parts)))
