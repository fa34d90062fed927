"""Records a job's program from its first line to its last step, with facts of its steps."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tensorlens.planning.step_facts import StepFacts, Watch
from tensorlens.planning.trials.jobs import OPTIONS, Job
from tensorlens.planning.trials.meter import Meter
from tensorlens.planning.trials.step_runner import END
from tensorlens.recording.record import record
from tensorlens.recording.recordings import Recording


class ProgramRecording:
    """Passes marks on to a meter, and adds them to a recording.

    Steps of a whole program get no marks there: the optimizers' steps delimit them.
    """

    def __init__(self, meter: Meter, job: Job) -> None:
        self._meter = meter
        self._last_step = f"step {job.warmup + job.steps}"
        self._recording = record()
        framework = importlib.import_module(OPTIONS[job.framework])
        self._watch: Watch = framework.step_watch(self._recording.mark)
        self._is_whole = True
        self.result: tuple[Recording, StepFacts] | None = None

    def begin(self, begin: Callable[[], Any]) -> Any:
        """Start recording and begin the program; return its step, None of a whole program."""
        self._recording.start()
        step = None
        try:
            with self._watch.on():
                step = begin()
            return step
        finally:
            # here the exception that ends a whole program still holds its frames
            if step is None:
                self._end()

    def call(self, step: Callable[[], Any]) -> Any:
        """Run one step."""
        with self._watch.on():
            return step()

    def mark(self, name: str, row: int | None = None) -> None:
        """Pass a mark on, and stop recording after the last step."""
        self._meter.mark(name, row)
        if not self._is_whole:
            self._recording.mark(name)
            self._watch.is_last = name == self._last_step
            if name == END:
                self._end()

    def forget_marks(self) -> None:
        """Forget the marks so far: they were no steps."""
        self._is_whole = False
        self._meter.forget_marks()

    def _end(self) -> None:
        try:
            facts = self._watch.facts(self._is_whole)
        except Exception:
            # unreadable facts are left out
            facts = StepFacts(is_whole=self._is_whole)
        self._recording.stop()
        self.result = Recording(self._recording.log, self._recording.origin), facts
