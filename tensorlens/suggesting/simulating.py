"""Changes that a recording cannot tell: the step with them, on tensors without data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorlens.comparing.estimates import Estimated, Estimation, run_estimate
from tensorlens.estimating.programs import MakeStep, program
from tensorlens.frameworks.trials import Choice
from tensorlens.records.suggestions import SIMULATED
from tensorlens.suggesting.candidates import Candidate
from tensorlens.suggesting.scene import Scene

_WORTH = 0.01
"""Of the peak: halves of activations that are less are not looked into."""


@dataclass
class Simulation:
    """Runs of a program on tensors without data.

    Args:
        make_step: the program.
        device: ``cpu`` or a CUDA device.
        batch: what ``make_step`` is called with; None: nothing.
        arguments: keyword arguments of ``make_step``.
        steps: how many are run.
    """

    make_step: MakeStep
    device: str
    batch: int | None
    arguments: Mapping[str, Any]
    steps: int
    notes: list[str] = field(default_factory=list)
    """Why a change could not be tried."""

    def autocast(self, scene: Scene) -> Iterator[Candidate]:
        """Give the change to autocast in bfloat16, where the step computes in single precision."""
        facts = scene.facts
        if facts is None or facts.is_lower or facts.is_whole:
            return
        there = [row for row in scene.allocations() if scene.resident(row, scene.peak_row)]
        activations = scene.nbytes(row for row in there if scene.role(row) == "activation")
        if activations / 2 < _WORTH * scene.peak:
            return
        saving = self._saving({"autocast": "bf16"})
        if saving is None:
            return
        yield Candidate(
            kind="bf16",
            change="autocast in bf16",
            what="activations and weights in forward, in half the bytes",
            code=f'with torch.autocast("{scene.device.partition(":")[0]}", dtype=torch.bfloat16):'
            " around the model and the loss",
            peak=scene.peak - saving,
            cost="numbers of 8 bits: the loss differs a little",
            settings={"autocast": "bf16"},
            how=SIMULATED,
        )

    def _saving(self, settings: Mapping[str, Any]) -> int | None:
        before, after = self._peak({}), self._peak(settings)
        return None if before is None or after is None else before - after

    def _peak(self, settings: Mapping[str, Any]) -> int | None:
        asked = Estimation(
            name="autocast",
            program=program(self.make_step),
            choice=Choice(settings, self.arguments),
            framework="torch",
            device=self.device,
            batch=self.batch,
            steps=self.steps,
        )
        found = run_estimate(asked)
        if isinstance(found, Estimated):
            return found.peak_allocated
        reason = f"autocast in bf16 could not be simulated: {found.text}"
        if reason not in self.notes:
            self.notes.append(reason)
        return None
