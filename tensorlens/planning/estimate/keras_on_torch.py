"""``estimate()`` of a Keras model that runs on torch: its steps are run on fake tensors."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras.train_steps.anew import describe, make_step
from tensorlens.frameworks.keras.train_steps.shapes import TYPES_ARE_GUESSED, tells_types
from tensorlens.planning.estimate.placement import Place
from tensorlens.planning.estimate.result import Estimate
from tensorlens.planning.estimate.steps import BATCHES, StepsRequest
from tensorlens.planning.estimate.target import packed
from tensorlens.planning.processes import Runner
from tensorlens.records.traces import Caution


@dataclass(frozen=True)
class KerasOnTorch:
    """A Keras model whose backend is torch."""

    model: Any
    batch: int
    options: Mapping[str, Any]
    """As :func:`~tensorlens.frameworks.keras.train_steps.anew.describe` takes them."""
    place: Place
    steps: int
    settings: str

    def ask(self, runner: Runner) -> Estimate:
        """Make the model anew in a process of its own, run its steps, and return the answer.

        Raises:
            UsageError: the model cannot be made from its configuration, or its inputs have no
                shape.
            ProgramFailed: its step raised an error.
        """
        step = functools.partial(make_step, describe(self.model, self.batch, **self.options))
        run = StepsRequest(packed(step, self.model.name), self.place, self.steps, self.settings)
        found = run.ask(runner)
        if not tells_types(self.model) and self.options.get("input_dtype") is None:
            found = replace(found, warnings=(*found.warnings, Caution(TYPES_ARE_GUESSED)))
        return replace(found, batch=self.batch)

    def with_batch(self, batch: int) -> KerasOnTorch:
        """Return the same request for another batch."""
        return replace(self, batch=batch)

    def with_argument(self, name: str, value: int) -> KerasOnTorch:
        """Return the same request for another batch: a model has no other argument."""
        check_argument(name)
        return self.with_batch(value)


def check_argument(name: str) -> None:
    """Check that a Keras model has an argument that varies.

    Raises:
        UsageError: it is not the batch.
    """
    if name not in BATCHES:
        raise UsageError(
            f"{name}: of a Keras model the batch alone varies; give a make_step that takes it"
        )
