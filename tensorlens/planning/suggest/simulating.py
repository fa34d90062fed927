"""Changes that a recording cannot tell: the step with them, on tensors without data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorlens.frameworks.trials.jobs import Choice, Trouble
from tensorlens.planning.compare.estimates import Estimation, run_estimate
from tensorlens.planning.estimate.result import Range
from tensorlens.planning.estimate.target import MakeStep, program
from tensorlens.planning.processes import Runner, shared_runner

AS_IT_IS = "as it is"


_NOT_THE_SAME = (
    "a block does not compute the same twice: look for a cache (use_cache=True), random numbers of"
    " its own, or what depends on how often it was called"
)


def explained(why: str) -> str:
    """Return why a change fails, with what is known of errors of that kind."""
    return f"{why}; {_NOT_THE_SAME}" if "CheckpointError" in why else why


@dataclass
class Simulation:
    """Runs of a program on tensors without data.

    Args:
        make_step: the program.
        framework: of the program.
        device: ``cpu`` or a CUDA device.
        batch: what ``make_step`` is called with; None: nothing.
        arguments: keyword arguments of ``make_step``.
        steps: how many are run.
    """

    make_step: MakeStep
    framework: str
    device: str
    batch: int | None
    arguments: Mapping[str, Any]
    steps: int
    notes: list[str] = field(default_factory=list)
    """Why a change could not be tried."""
    peaks: dict[str, Range] = field(default_factory=dict)
    """Change to the bounds of its peak."""
    _before: int | Trouble | None = None
    """The peak of the program as it is."""

    def refuses(self, change: str) -> bool:
        """Tell whether the program could be simulated as it is, and not with a change."""
        return isinstance(self._before, int) and change not in self.peaks

    def savings(self, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
        """Return what changes save, by name; those that cannot be simulated are noted.

        Args:
            changes: name to settings of :func:`tensorlens.compare`.
        """
        with shared_runner() as runner:
            if self._before is None:
                self._before = self._peak(AS_IT_IS, {}, runner)
            before = self._before
            if isinstance(before, Trouble):
                self.notes.append(f"{' and '.join(changes)} could not be simulated: {before.text}")
                return {}
            found = {}
            for name, settings in changes.items():
                after = self._peak(name, settings, runner)
                if isinstance(after, Trouble):
                    self.notes.append(f"{name} could not be simulated: {explained(after.text)}")
                else:
                    found[name] = before - after
        return found

    def _peak(self, name: str, settings: Mapping[str, Any], runner: Runner) -> int | Trouble:
        asked = Estimation(
            name=name,
            program=program(self.make_step),
            choice=Choice(settings, self.arguments),
            framework=self.framework,
            device=self.device,
            batch=self.batch,
            steps=self.steps,
        )
        found = run_estimate(asked, runner)
        if isinstance(found, Trouble):
            return found
        self.peaks[name] = found.peaks or Range.exactly(found.peak_allocated)
        return found.peak_allocated
