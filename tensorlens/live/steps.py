"""The steps of a process's optimizer, and a recording of the next few of them."""

from __future__ import annotations

import threading
from pathlib import Path

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.base import Adapter
from tensorlens.guards import is_from_a_handler, reason
from tensorlens.interpreter import start_thread
from tensorlens.recording.record import record
from tensorlens.render import formats
from tensorlens.render.figures import counted

_WRITE_SECONDS = 60.0
"""Seconds that the end of a process waits for a recording to be written."""


_WAITS = "the recording begins when a step ends"
_SAW_NO_STEP = "the recording waits for a step of an optimizer: none was seen so far"


class StepCounter:
    """Counts the steps of the first framework whose optimizer steps."""

    def __init__(self) -> None:
        self.count: int | None = None
        """None where they are not counted."""
        self.recording: StepRecording | None = None
        self._followed: list[Adapter] = []
        self._leader: Adapter | None = None

    def follow(self, adapter: Adapter) -> None:
        """Count the steps of one more framework, from now on."""
        self.count = self.count or 0
        if adapter not in self._followed:
            self._followed.append(adapter)
            adapter.when_stepped(lambda: self._stepped(adapter))

    def record(self, steps: int, path: Path) -> None:
        """Record the next steps and write that; 0 ends a recording with the step that runs.

        Raises:
            TensorlensError: no step is to be expected, or a recording is on already.
        """
        if self.count is None:
            raise TensorlensError(
                "steps are counted only in a job that was started with TENSORLENS_LIVE=1"
            )
        running = self.recording
        if running is not None and running.is_on:
            if steps:
                raise TensorlensError("a recording is on already")
            running.shorten()
        elif steps < 1:
            raise UsageError("give how many steps are recorded, 1 or more")
        else:
            has_stepped = self.count > 0
            self.recording = StepRecording(steps, path, _WAITS if has_stepped else _SAW_NO_STEP)

    def state(self) -> str:
        """Return the state of the recording in words; empty where none was asked for."""
        return "" if self.recording is None else self.recording.state

    def _stepped(self, adapter: Adapter) -> None:
        """Count a step, in the thread that made it."""
        self._leader = self._leader or adapter
        if self._leader is adapter:
            self.count = (self.count or 0) + 1
            if self.recording is not None:
                self.recording.step_ends(self.count)


class StepRecording:
    """A recording that begins at the end of a step and is written after a number of steps.

    It begins and ends in the thread that steps: there, nothing runs through the hooks that come
    and go with it. Another thread writes it.
    """

    def __init__(self, steps: int, path: Path, state: str) -> None:
        self._steps = steps
        self._seen = 0
        self._path = path
        self._recording = record()
        self._failure: str | None = None
        self._has_begun = False
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        self._is_written = threading.Event()
        self.is_on = True
        self.state = state
        start_thread(self._write)

    def step_ends(self, number: int) -> None:
        """Begin, continue or end the recording after a step, without waiting for another thread."""
        if self._has_ended.is_set() or not self._lock.acquire(blocking=False):
            return
        try:
            if self._has_begun:
                self._seen += 1
                self._recording.mark(f"step {number}")
            else:
                self._recording.begin()
                self._has_begun = True
            self.state = f"recording: {self._seen} of {self._steps} steps"
            if self._seen >= self._steps:
                self._end()
        except Exception as error:
            if is_from_a_handler(error):
                raise
            self._failure = reason(error)
            self._end()
        finally:
            self._lock.release()

    def shorten(self) -> None:
        """End with the step that runs; before the recording has begun, now and with nothing."""
        with self._lock:
            self._steps = 0
            if not self._has_begun:
                self._end()

    def finish(self) -> None:
        """Write what there is, as the process ends."""
        with self._lock:
            if not self._has_ended.is_set():
                self._end()
        self._is_written.wait(_WRITE_SECONDS)

    def _end(self) -> None:
        self.state = f"writing {self._path}"
        try:
            self._recording.stop()
        finally:
            self._has_ended.set()

    def _write(self) -> None:
        self._has_ended.wait()
        failure = self._failure or self._recording.failure
        try:
            if failure is not None:
                raise TensorlensError(f"the recording was lost: {failure}")
            if not self._seen:
                raise TensorlensError("no step was recorded")
            formats.save(self._recording, self._path)
            self.state = f"wrote {self._path}: {counted(self._seen, 'step')}"
        except Exception as error:
            self.state = reason(error)
        self.is_on = False
        self._is_written.set()
