"""The recorders of all frameworks, whose events are one log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from tensorlens.frameworks.base import Adapter, Recorder, RecordOptions
from tensorlens.frameworks.registry import ask, left_out
from tensorlens.guards import reason
from tensorlens.records.events import EventLog
from tensorlens.records.origin import Origin, Recorded, merge_origins
from tensorlens.signals import is_from_a_handler


class Recorders:
    """Records in each framework that can, from its making on; the events are one log, by time.

    Args:
        adapters: one for each framework.
        options: what is recorded.

    Raises:
        TensorlensError: none of them can record; the text says why.
    """

    def __init__(self, adapters: Sequence[Adapter], options: RecordOptions) -> None:
        self._options = options
        self._running: list[tuple[str, Recorder]] = []
        with ExitStack() as stack:
            stack.callback(_end, self._running)
            _, failed = ask(adapters, self._start)
            stack.pop_all()
        refusals = (_refusal(name, text) for name, text in failed.items())
        self._notes = [*refusals, *left_out()]

    def _start(self, adapter: Adapter) -> None:
        self._running.append((adapter.name, adapter.record(self._options)))

    def add(self, adapter: Adapter) -> None:
        """Record another framework from now on; a note says why where it cannot."""
        try:
            self._start(adapter)
        except Exception as error:
            # in the program's own import, which is to go on
            if is_from_a_handler(error):
                raise
            self._notes.append(_refusal(adapter.name, reason(error)))

    def mark(self, name: str) -> None:
        """Give this moment a name, behind the last event of each framework."""
        for _, recorder in self._running:
            recorder.mark(name)

    def read(self, end: bool) -> tuple[EventLog, Origin]:
        """Return the log so far; ``end`` stops recording in all, whatever fails in one."""
        found: list[Recorded] = []
        notes = [*self._notes]
        waiting = [*self._running]
        while waiting:
            name, recorder = waiting.pop(0)
            try:
                found.append(recorder.read(end))
            except BaseException as error:
                is_ours = isinstance(error, Exception) and not is_from_a_handler(error)
                if not is_ours or not (found or waiting):
                    _end(waiting if end else ())
                    raise
                notes.append(f"{name}: its events were lost: {reason(error)}")
        log, origin = merge_origins(found, same_marks=True)
        return log, replace(origin, notes=(*origin.notes, *notes))


def _refusal(name: str, text: str) -> str:
    return f"{name} is not recorded: {text}"


def _end(running: Sequence[tuple[str, Recorder]]) -> None:
    """Stop recorders that nobody will read."""
    for _, recorder in running:
        with suppress(Exception):
            recorder.read(True)
