"""A program whose step is traced in a process of its own, and what it will need."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorlens.errors import TensorlensError
from tensorlens.frameworks.trials.trial import Trial, Trouble
from tensorlens.planning.compare.launching import Launcher
from tensorlens.planning.estimate.assembling import assemble
from tensorlens.planning.estimate.batches import MaxBatch, largest_batch
from tensorlens.planning.estimate.result import Estimate


class TraceFailed(TensorlensError):
    """There is no trace."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble


@dataclass(frozen=True)
class TracedProgram:
    """A program with an option, for an estimate."""

    trial: Trial
    launcher: Launcher
    capacity: int | None

    def estimate(self) -> Estimate:
        """Trace it and return what it will need.

        Raises:
            TraceFailed: there is no trace.
        """
        found = self.launcher.trace(self.trial)
        if isinstance(found, Trouble):
            raise TraceFailed(found)
        return assemble(
            found,
            device=self.trial.device or "cuda",
            card=self.trial.card,
            settings="",
            capacity=self.capacity,
            program=self.trial.program.name,
        )

    def largest(self, lowest: int, highest: int | None) -> MaxBatch:
        """Return the largest batch that fits.

        Raises:
            TraceFailed: there is no trace.
        """
        assert self.capacity is not None

        def estimated(batch: int) -> Estimate:
            return replace(self, trial=replace(self.trial, batch=batch)).estimate()

        return largest_batch(estimated, self.capacity, lowest, highest)
