"""``estimate()`` of a Keras model that runs on torch: its steps are run on fake tensors."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.estimating.programs import packed
from tensorlens.estimating.questions import Question
from tensorlens.estimating.worker import Worker
from tensorlens.frameworks.keras.train_steps.anew import describe, make_step
from tensorlens.frameworks.keras.train_steps.shapes import TYPES_ARE_GUESSED, tells_types
from tensorlens.records.cards import Card
from tensorlens.records.estimates import Estimate
from tensorlens.records.traces import Caution


@dataclass(frozen=True)
class KerasOnTorch:
    """What is asked of a Keras model whose backend is torch, checked."""

    model: Any
    batch: int
    options: Mapping[str, Any]
    """As :func:`~tensorlens.frameworks.keras.train_steps.anew.describe` takes them."""
    device: str
    card: Card | None
    capacity: int | None
    steps: int
    settings: str

    def ask(self, worker: Worker) -> Estimate:
        """Make the model anew in a process of its own, run its steps, and return the answer.

        Raises:
            UsageError: the model cannot be made from its configuration, or its inputs have no
                shape.
            ProgramFailed: its step raised an error.
        """
        step = functools.partial(make_step, describe(self.model, self.batch, **self.options))
        asked = Question(
            program=packed(step, self.model.name),
            device=self.device,
            card=self.card,
            steps=self.steps,
            settings=self.settings,
            capacity=self.capacity,
        )
        found = asked.ask(worker)
        if not tells_types(self.model) and self.options.get("input_dtype") is None:
            found = replace(found, warnings=(*found.warnings, Caution(TYPES_ARE_GUESSED)))
        return replace(found, batch=self.batch)

    def with_batch(self, batch: int) -> KerasOnTorch:
        """Return the same question for another batch."""
        return replace(self, batch=batch)
