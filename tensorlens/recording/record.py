"""``record()``: a recording that fills while the program runs."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any

from tensorlens import ranks
from tensorlens.errors import UsageError
from tensorlens.frameworks.base import Adapter, Recorder, RecordOptions
from tensorlens.frameworks.registry import (
    adapters,
    ask,
    imported_since,
    no_framework_text,
    not_imported,
    unusable_notes,
    when_imported,
)
from tensorlens.guards import guarded, is_from_a_handler, reason
from tensorlens.interpreter import reentrant_lock
from tensorlens.recording import oom
from tensorlens.recording.analysis.costs import backward_calls
from tensorlens.recording.recordings import Recording
from tensorlens.records.logs.events import DeferredLog, EventLog, Origin, Recorded
from tensorlens.records.logs.merging import merge_recordings
from tensorlens.tensors.reporter import MemReporter

_LINE_TABLES = "tensorlens.lines.results"
"""Imported if lines are profiled; their tables have a column for backward."""

_lock = reentrant_lock()
_running: list[LiveRecording] = []


class LiveRecording(Recording):
    """A recording that is on from :meth:`start` to :meth:`stop`, or inside of ``with``; once.

    While it is on, its answers cover the events so far. For another span of time make another:
    it costs little, and recordings overlap and nest.
    """

    def __init__(self, options: RecordOptions) -> None:
        super().__init__(EventLog())
        self._still = Recording(EventLog())
        self._options = options
        self._recorders: Recorders | None = None
        self._adapters: list[Adapter] = []
        """Adapters of the frameworks that it records, or tried to."""
        self._wait: list[Callable[[], None]] = []
        """Functions that each stop waiting for a framework."""
        self._started = False
        self.failure: str | None = None
        """Why nothing was recorded or the recording is lost; None without a failure."""

    def start(self) -> LiveRecording:
        """Begin to record, once: each recording is of one span of time.

        Where that fails inside tensorlens the program goes on, one line on standard error says
        so, and :attr:`failure` says why the recording is empty.

        Raises:
            UsageError: it was started before, or the program has imported no framework.
        """
        with guarded("nothing is recorded"):
            self.begin()
        return self

    def begin(self) -> None:
        """Begin to record, or raise what went wrong.

        Raises:
            UsageError: it was started before, or the program has imported no framework.
            Exception: a failure inside tensorlens.
        """
        with _lock:
            if self._started:
                raise UsageError("this recording was started before: make another with record()")
            found = adapters()
            if not found:
                raise UsageError(no_framework_text("nothing to record", "before record() starts"))
            self._started = True
            self._adapters = found
            self._recorders = self._start_recorders(found)
            oom.reserve()
            _running.append(self)
        self._wait = [when_imported(name, self._add_frameworks) for name in not_imported()]

    def _start_recorders(self, found: list[Adapter]) -> Recorders:
        """Return the recorders; on failure note why and raise."""
        try:
            return Recorders(found, self._options)
        except Exception as error:
            self.failure = reason(error)
            notes = (f"nothing was recorded: {self.failure}",)
            self._still = Recording(EventLog(), Origin(notes=notes))
            raise

    def _add_frameworks(self) -> None:
        """Record a framework that the program imports later, from its import on."""
        with _lock:
            found, before = adapters(), self._adapters
            self._adapters = found
            if self._recorders is not None:
                for each in found:
                    if each not in before:
                        self._recorders.add(each)

    def stop(self) -> LiveRecording:
        """Record no more; the second time it does nothing."""
        with _lock:
            recorders, self._recorders = self._recorders, None
            try:
                for give_up in self._wait:
                    give_up()
            finally:
                self._unregister()
            if recorders is None:
                return self
            with guarded("a recording is lost"):
                self._end(recorders)
            # drops a reporter, which notes births as long as it lives
            self._options = replace(self._options, roots=tuple)
        if _LINE_TABLES in sys.modules:
            with guarded("the tables of lines lack the backward pass of a recording"):
                add_backward(self)
        return self

    def _end(self, recorders: Recorders) -> None:
        try:
            self._read(recorders, end=True)
        except Exception as error:
            self.failure = reason(error)
            raise

    def _unregister(self) -> None:
        """Remove it from the running recordings, also after an interrupted stop."""
        if any(each is self for each in _running):
            _running[:] = [each for each in _running if each is not self]
            oom.release()

    def mark(self, name: str) -> None:
        """Give this moment a name, for :meth:`growth` and for pictures."""
        if not isinstance(name, str):
            raise UsageError(f"mark({name!r}): give a name, such as 'step 3'")
        recorders = self._recorders
        if recorders is not None:
            recorders.mark(name)
        elif self.failure is None:
            raise UsageError("mark() is for a recording that is on")

    @property
    def log(self) -> EventLog:
        """The events in columns; while it is on, those so far."""
        return self.still().log

    @property
    def origin(self) -> Origin:
        """Where the recording is from; while it is on, with what is known so far."""
        return self.still().origin

    def still(self) -> Recording:  # type: ignore[override]
        """Return the recording as of now: log and origin of one reading."""
        with _lock:
            if self._recorders is not None:
                self._read(self._recorders, end=False)
            return self._still

    def _read(self, recorders: Recorders, end: bool) -> None:
        log, origin = recorders.read(end)
        unseen = (
            f"{name} was imported while the recording began, and is not in it"
            for name in imported_since(self._adapters)
        )
        notes = (*origin.notes, *unseen)
        process = ranks.label(origin.process)
        self._still = Recording(log, replace(origin, notes=notes, process=process))

    def __enter__(self) -> LiveRecording:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
            return
        with oom.released():
            # must not replace the error on its way
            with guarded("a recording is lost"):
                self.stop()
            if self.failure is not None:
                error.add_note(f"tensorlens: the recording was lost: {self.failure}")
            oom.explain(error, self)


class Recorders:
    """The recorders of all frameworks, which start at once; their events are one log, by time.

    Args:
        adapters: one for each framework.
        options: what is recorded.

    Raises:
        TensorlensError: none of them can record; the text says why.
    """

    def __init__(self, adapters: Sequence[Adapter], options: RecordOptions) -> None:
        self._options = options
        self._running: list[tuple[str, Recorder]] = []
        self._marks: list[tuple[str, int, int]] = []
        """Names, with their moments by the wall clock and the monotonic one."""
        with ExitStack() as stack:
            stack.callback(_stop_unread, self._running)
            _, failed = ask(adapters, self._start)
            stack.pop_all()
        refusals = (_refusal(name, text) for name, text in failed.items())
        self._notes = [*refusals, *unusable_notes()]

    def _start(self, adapter: Adapter) -> None:
        self._running += adapter.record(self._options).items()

    def add(self, adapter: Adapter) -> None:
        """Record another framework from now on; a note says why where it cannot."""
        try:
            self._start(adapter)
        except Exception as error:
            # runs inside the program's own import, which must go on
            if is_from_a_handler(error):
                raise
            self._notes.append(_refusal(adapter.name, reason(error)))

    def mark(self, name: str) -> None:
        """Give this moment a name."""
        self._marks.append((name, time.time_ns(), time.monotonic_ns()))

    def read(self, end: bool) -> tuple[EventLog, Origin]:
        """Return the log so far; ``end`` stops recording in all, whatever fails in one."""
        found: list[Recorded] = []
        notes = [*self._notes]
        waiting = [*self._running]
        while waiting:
            name, recorder = waiting.pop(0)
            try:
                recorded = recorder.read(end)
                found += [recorded] if recorded is not None else []
            except BaseException as error:
                is_ours = isinstance(error, Exception) and not is_from_a_handler(error)
                if not is_ours or not (found or waiting):
                    _stop_unread(waiting if end else ())
                    raise
                notes.append(f"{name}: its events were lost: {reason(error)}")
        log, origin = merge_recordings(found)
        # without a recorder's log there is no start that the marks' times count from
        if self._marks and found:
            log = DeferredLog(partial(_with_marks, log, origin, [*self._marks]))
        return log, replace(origin, notes=(*origin.notes, *notes))


def _with_marks(log: EventLog, origin: Origin, marks: Sequence[tuple[str, int, int]]) -> EventLog:
    wall = round((origin.started or 0.0) * 1e9)
    exact = origin.started_ns
    named = ((name, time - wall if exact is None else now - exact) for name, time, now in marks)
    log.add_marks(named, origin.dropped)
    return log


def _refusal(name: str, text: str) -> str:
    return f"{name} is not recorded: {text}"


def _stop_unread(running: Sequence[tuple[str, Recorder]]) -> None:
    """Stop recorders that nobody will read."""
    for _, recorder in running:
        with suppress(Exception):
            recorder.read(True)


class _Roots(MemReporter):
    """Models and optimizers from which a recording takes names."""

    _called = "record()"


def record(
    *roots: Any, limit: int = 1_000_000, ops: bool = True, names: bool = True
) -> LiveRecording:
    """Return a recording of every allocation and free, for ``with`` or ``start()`` and ``stop()``.

    Recordings may overlap, and see all threads of the process.

    Args:
        roots: models and optimizers to take names from, as ``MemReporter`` takes them; without
            them, names begin at variables (``train(): net.fc1.weight``).
        limit: how many events are kept, at 32 bytes each; the oldest are dropped first, and what
            was resident at the highest instant of the dropped ones stays known.
        ops: note operators and autograd's nodes as well: without them it costs less, and there is
            no backward by forward line.
        names: take a census at the beginning and the end, which gives tensors their names; it
            takes as long as ``MemReporter.snapshot()``.

    Raises:
        UsageError: ``limit`` is not a positive whole number, or something given holds no tensors.
    """
    if not isinstance(limit, int) or limit < 1:
        raise UsageError(f"limit={limit!r}: give a whole number of events, 1 or more")
    named = _Roots(*roots).roots if roots else tuple
    return LiveRecording(RecordOptions(limit, ops, names, named))


def running() -> list[LiveRecording]:
    """Return the recordings that are on."""
    with _lock:
        return [*_running]


FileLine = tuple[str, int]
"""File name and line number."""


@dataclass(frozen=True, slots=True)
class BackwardLines:
    """Bytes of backward by line, from recordings."""

    nbytes: Mapping[str, Mapping[FileLine, int]] = field(default_factory=dict)
    """Device to line to bytes allocated in backward, with those of lines that it calls."""
    seen: frozenset[FileLine] = frozenset()
    """Lines of the user on any recorded stack."""

    def covers(self, filename: str, linenos: Iterable[int]) -> bool:
        """Tell whether any of a function's lines was recorded."""
        return any((filename, lineno) in self.seen for lineno in linenos)


_total = BackwardLines()
"""Sum over the recordings that have ended."""


def total_backward() -> BackwardLines:
    """Return the sum over all recordings so far.

    Recordings that follow one another are added up. Of those that overlap, which share events, only
    the last to end counts; while any is on, the one of them that began first counts instead.
    """
    return _sum(_total, *map(_lines, running()[:1]))


def add_backward(recording: Recording) -> None:
    """Add the lines of a recording that ended; nothing else of it is kept."""
    global _total
    # when memory has run out an error is on its way already
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
    sums: dict[str, Counter[FileLine]] = {}
    for part in parts:
        for device, lines in part.nbytes.items():
            sums.setdefault(device, Counter()).update(lines)
    return BackwardLines(sums, frozenset().union(*(part.seen for part in parts)))
