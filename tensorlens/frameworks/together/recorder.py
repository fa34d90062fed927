"""The recorders of several frameworks, read as one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from tensorlens.frameworks.base import Recorder
from tensorlens.records.events import EventLog
from tensorlens.records.joined_recordings import Recorded, as_one
from tensorlens.records.recordings import Origin
from tensorlens.signals import is_from_a_handler


class JoinedRecorder:
    """Records in each of several frameworks; the events are one log, by time.

    Args:
        parts: each framework's name and its recorder, which runs.
        notes: what a reader must know besides.
    """

    def __init__(self, parts: Sequence[tuple[str, Recorder]], notes: Sequence[str] = ()) -> None:
        self._parts = tuple(parts)
        self._notes = tuple(notes)

    def mark(self, name: str) -> None:
        """Give this moment a name, behind the last event of each framework."""
        for _, part in self._parts:
            part.mark(name)

    def read(self, end: bool) -> tuple[EventLog, Origin]:
        """Return the log so far; ``end`` stops recording in all, whatever fails in one."""
        found: list[Recorded] = []
        notes = [*self._notes]
        waiting = [*self._parts]
        while waiting:
            name, part = waiting.pop(0)
            try:
                found.append(part.read(end))
            except BaseException as error:
                is_ours = isinstance(error, Exception) and not is_from_a_handler(error)
                if not is_ours or not (found or waiting):
                    _end(waiting if end else ())
                    raise
                notes.append(f"{name}: its events were lost: {type(error).__name__}: {error}")
        log, origin = as_one(found, same_marks=True)
        return log, replace(origin, notes=(*origin.notes, *notes))


def _end(parts: Sequence[tuple[str, Recorder]]) -> None:
    """Stop recorders that nobody will read."""
    for _, part in parts:
        with suppress(Exception):
            part.read(True)
