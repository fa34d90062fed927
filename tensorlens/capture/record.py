"""``record()``: a recording that fills while the program runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

from tensorlens import ranks
from tensorlens.capture import regions, reserve
from tensorlens.census.reporter import MemReporter
from tensorlens.errors import UsageError
from tensorlens.frameworks.arrival import when_imported
from tensorlens.frameworks.base import Framework, Recorder, RecordOptions, awaited, missing, whole
from tensorlens.frameworks.together import arrived, parts_of
from tensorlens.frameworks.together.recorder import JoinedRecorder
from tensorlens.guards import guarded, reason
from tensorlens.records.events import EventLog
from tensorlens.records.recordings import Origin, Recording
from tensorlens.signals import is_from_a_handler

_LINE_TABLES = "tensorlens.lines.results"
"""Imported where lines are profiled; their tables have a column for backward."""

_lock = threading.RLock()
_running: list[LiveRecording] = []


class LiveRecording(Recording):
    """A recording that is on from :meth:`start` to :meth:`stop`, or inside of ``with``; once.

    What it answers while it is on is of the events so far. For another span of time make another:
    it costs little, and recordings overlap and nest.
    """

    def __init__(self, options: RecordOptions) -> None:
        super().__init__(EventLog())
        self._options = options
        self._recorder: Recorder | None = None
        self._framework: Framework | None = None
        self._wait: list[Callable[[], None]] = []
        """Each gives up waiting for a framework."""
        self._lost: list[str] = []
        """Notes on those that came and could not be recorded."""
        self._started = False
        self.failure: str | None = None
        """Why nothing was recorded, or what was is lost; None where neither is so."""

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
            framework = whole()
            if framework is None:
                raise UsageError(missing("nothing to record", "before record() starts"))
            self._started = True
            self._framework = framework
            self._recorder = self._begun(framework)
            reserve.hold()
            _running.append(self)
        self._wait = [when_imported(name, self._take_up) for name in awaited()]

    def _begun(self, framework: Framework) -> Recorder:
        """Return what records, or note why there is none and raise that."""
        try:
            return framework.record(self._options)
        except Exception as error:
            self.failure = reason(error)
            self._origin = replace(self._origin, notes=(f"nothing was recorded: {self.failure}",))
            raise

    def _take_up(self) -> None:
        """Record a framework that the program imports meanwhile, from its import on."""
        with _lock:
            now, before = whole(), parts_of(self._framework)
            for part in parts_of(now):
                if part in before or self._recorder is None:
                    continue
                name = " and ".join(each.name for each in before)
                try:
                    late = part.record(self._options)
                except Exception as error:
                    # in the program's own import, which is to go on
                    if is_from_a_handler(error):
                        raise
                    self._lost.append(
                        f"{part.name} is not recorded: {type(error).__name__}: {error}"
                    )
                else:
                    self._recorder = JoinedRecorder([(name, self._recorder), (part.name, late)])
            self._framework = now

    def stop(self) -> LiveRecording:
        """Record no more; the second time it does nothing."""
        with _lock:
            recorder, self._recorder = self._recorder, None
            try:
                for give_up in self._wait:
                    give_up()
            finally:
                self._leave()
            if recorder is None:
                return self
            with guarded("a recording is lost"):
                self._end(recorder)
            # with it goes a reporter, which notes births as long as it lives
            self._options = replace(self._options, roots=tuple)
        if _LINE_TABLES in sys.modules:
            from tensorlens.capture.backward import keep

            keep(self)
        return self

    def _end(self, recorder: Recorder) -> None:
        try:
            self._take(recorder, end=True)
        except Exception as error:
            self.failure = reason(error)
            raise

    def _leave(self) -> None:
        """Be none of those that are on, also after a stop that was interrupted."""
        if any(each is self for each in _running):
            _running[:] = [each for each in _running if each is not self]
            reserve.release()

    def mark(self, name: str) -> None:
        """Give this moment a name, for :meth:`growth` and for pictures."""
        recorder = self._recorder
        if recorder is not None:
            recorder.mark(name)
        elif self.failure is None:
            raise UsageError("mark() is for a recording that is on")

    @property
    def log(self) -> EventLog:
        """The events in columns; while it is on, those so far."""
        self._refresh()
        return self._log

    @property
    def origin(self) -> Origin:
        """Where the recording is from."""
        return self._origin

    def _refresh(self) -> None:
        with _lock:
            if self._recorder is not None:
                self._take(self._recorder, end=False)

    def _take(self, recorder: Recorder, end: bool) -> None:
        log, origin = recorder.read(end)
        unseen = (
            f"{name} was imported while the recording began, and is not in it"
            for name in arrived(self._framework, whole())
        )
        notes = (*origin.notes, *self._lost, *unseen)
        self._log = log
        self._origin = replace(origin, notes=notes, process=ranks.label(origin.process))
        self._answers = {}

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
        with reserve.given_up():
            # the error on its way is not to give way to another one
            with guarded("a recording is lost"):
                self.stop()
            if self.failure is not None:
                error.add_note(f"tensorlens: the recording was lost: {self.failure}")
            regions.explain(error, self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Recording, (self.log, self.origin)


class _Roots(MemReporter):
    """The models and optimizers that a recording takes names from."""

    _called = "record()"


def record(
    *roots: Any, limit: int = 1_000_000, ops: bool = True, names: bool = True
) -> LiveRecording:
    """Return a recording of every allocation and free, for ``with`` or ``start()`` and ``stop()``.

    Recordings may overlap, and see all threads of the process.

    Args:
        roots: models and optimizers to take names from, as ``MemReporter`` takes them; without
            them, names begin at variables (``train(): net.fc1.weight``).
        limit: how many events are kept, at 32 bytes each; the oldest go first, and what was
            resident at the highest instant among them stays known.
        ops: note operators and autograd's nodes as well: without them it costs less, and there is
            no backward by forward line.
        names: take a census at the beginning and the end, which gives tensors their names; it
            takes as long as ``MemReporter.snapshot()``.

    Raises:
        UsageError: ``limit`` is not positive, or something given holds no tensors.
    """
    if limit < 1:
        raise UsageError(f"limit={limit}: how many events are kept, at least 1")
    named = _Roots(*roots).roots if roots else tuple
    return LiveRecording(RecordOptions(limit, ops, names, named))


def running() -> list[LiveRecording]:
    """Return the recordings that are on."""
    with _lock:
        return [*_running]
