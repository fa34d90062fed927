"""A program whose steps are run on fake tensors, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.trials.protocol import Batch, Job, Program
from tensorlens.planning.estimate.assembling import assemble
from tensorlens.planning.estimate.placement import Place
from tensorlens.planning.estimate.result import Estimate
from tensorlens.planning.estimate.target import search_path
from tensorlens.planning.estimate.worker import Worker
from tensorlens.planning.progress import Bar
from tensorlens.records.traces import Trace

BATCHES = ("batch", "batch_size")
"""Names of an argument that is the batch."""
_ASKED = {"batch_size": "batch", "run_eagerly": "eager"}
"""Arguments that the tracing of a Keras model calls otherwise."""


@dataclass(frozen=True)
class StepsRequest:
    """A program whose steps are run on fake tensors."""

    program: Program
    place: Place
    steps: int
    settings: str
    options: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 1
    batch: Batch | None = None
    """What the function is called with; None: nothing."""
    of_keras: Mapping[str, Any] = field(default_factory=dict)
    """What is asked of a Keras model, if the program makes or trains one."""

    def ask(self, worker: Worker) -> Estimate:
        """Run it and return the answer."""
        return self.answer(self.trace(worker))

    def with_batch(self, batch: int) -> StepsRequest:
        """Return the same request, whose function is called with a batch."""
        return replace(self, batch=Batch(batch))

    def with_argument(self, name: str, value: int) -> StepsRequest:
        """Return the same request with a keyword argument of its function."""
        if name in BATCHES:
            return replace(self, batch=Batch(value, name))
        return replace(self, options={**self.options, name: value})

    def trace(self, worker: Worker) -> Trace:
        """Run it and return what it asks of allocators."""
        given = {} if self.batch is None else {"batch_size": self.batch.size}
        of_keras = {**self.of_keras, **given}
        job = Job(
            program=self.program,
            device=self.place.kind,
            card=self.place.card,
            steps=self.steps,
            path=search_path(),
            options=dict(self.options),
            batch=self.batch,
            world_size=self.world_size,
            of_keras={_ASKED.get(name, name): each for name, each in of_keras.items()},
        )
        with Bar(self.program.name, self.steps, "step") as bar:
            trace = worker.run(job, bar.done)
        if trace.batch is None and self.of_keras:
            raise UsageError(
                f"{', '.join(self.of_keras)}: these are arguments of Keras models, and"
                f" {self.program.name} makes none"
            )
        return trace

    def answer(self, trace: Trace) -> Estimate:
        """Return what a trace comes to."""
        return assemble(
            trace,
            device=self.place.device,
            card=self.place.card,
            settings=self.settings,
            capacity=self.place.capacity,
            program=self.program.name,
        )
