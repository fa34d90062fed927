"""In the process of the program: records it from its first line to the last step."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorlens.frameworks.step_facts import StepFacts, Watch, watch
from tensorlens.recording.record import LiveRecording, record
from tensorlens.recording.recordings import Recording

_SEEN = "seen.pickle"


class Watcher:
    """An option of :func:`tensorlens.compare` that changes nothing and records all.

    Args:
        folder: where the recording is left.
        steps: how many times the step is called.
        framework: of the program.
    """

    __name__ = "watched"

    def __init__(self, folder: str, steps: int, framework: str) -> None:
        self._folder = folder
        self._steps = steps
        self._framework = framework

    def __call__(self, make_step: Callable[[], Any]) -> Any:
        """Make the step and return it, watched."""
        recording = record()
        recording.start()
        seen = watch(self._framework, recording.mark)
        try:
            with seen.on():
                step = make_step()
        except BaseException:
            # a whole program, which is ended after its last step
            self._leave(recording, _facts(seen, is_whole=True))
            raise
        if not callable(step):
            self._leave(recording, _facts(seen, is_whole=True))
            return step
        done = 0

        def watched() -> Any:
            nonlocal done
            done += 1
            if done > self._steps:
                return step()
            recording.mark(f"step {done}")
            seen.is_last = done == self._steps
            with seen.on():
                result = step()
            if seen.is_last:
                recording.mark("end")
                self._leave(recording, _facts(seen, is_whole=False))
            return result

        return watched

    def _leave(self, recording: LiveRecording, facts: StepFacts) -> None:
        recording.stop()
        seen = Recording(recording.log, recording.origin), facts
        place = Path(self._folder) / _SEEN
        part = place.with_suffix(".part")
        part.write_bytes(pickle.dumps(seen, protocol=5))
        part.replace(place)


def _facts(seen: Watch, is_whole: bool) -> StepFacts:
    """Return what is known; what cannot be found out of a strange program is left out."""
    try:
        return seen.facts(is_whole)
    except Exception:
        return StepFacts(is_whole=is_whole)


def watched(folder: str) -> tuple[Recording, StepFacts] | None:
    """Return what a :class:`Watcher` left in a folder; None where it left nothing."""
    place = Path(folder) / _SEEN
    if not place.exists():
        return None
    seen: tuple[Recording, StepFacts] = pickle.loads(place.read_bytes())
    return seen
