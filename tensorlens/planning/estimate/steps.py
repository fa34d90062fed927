"""A program whose steps are run on fake tensors, or traced, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tensorlens.errors import UsageError
from tensorlens.frameworks.trials.jobs import Choice, Job, Mode, Program, Reason, Trouble
from tensorlens.planning.estimate.assembling import assemble
from tensorlens.planning.estimate.placement import Place
from tensorlens.planning.estimate.result import Estimate
from tensorlens.planning.estimate.target import search_path
from tensorlens.planning.processes import ProgramFailed, Runner
from tensorlens.planning.progress import Bar
from tensorlens.records.traces import Trace

BATCHES = ("batch", "batch_size")
"""Names of an argument that is the batch."""
_ASKED = {"batch_size": "batch", "run_eagerly": "eager"}
"""Arguments that the tracing of a Keras model calls otherwise."""


@dataclass(frozen=True)
class StepsRequest:
    """A program whose steps are estimated: torch's on fake tensors, TensorFlow's traced."""

    program: Program
    place: Place
    steps: int
    settings: str
    choice: Choice = field(default_factory=Choice)
    framework: str = "torch"
    world_size: int = 1
    batch: int | None = None
    """What the function is called with; None: nothing."""
    batch_argument: str = ""
    of_keras: Mapping[str, object] = field(default_factory=dict)
    """What is asked of a Keras model, if the program makes or trains one."""

    def ask(self, runner: Runner) -> Estimate:
        """Run it and return the answer.

        Raises:
            UsageError: the program is none that makes steps, or it cannot be pickled.
            ProgramFailed: the program raised an error, or it ended the process.
        """
        return assemble(
            self._trace(runner),
            device=self.place.device,
            card=self.place.card,
            settings=self.settings,
            capacity=self.place.capacity,
            program=self.program.name,
        )

    def with_batch(self, batch: int) -> StepsRequest:
        """Return the same request, whose function is called with a batch."""
        return replace(self, batch=batch, batch_argument="")

    def with_argument(self, name: str, value: int) -> StepsRequest:
        """Return the same request with a keyword argument of its function."""
        if name in BATCHES:
            return replace(self, batch=value, batch_argument=name)
        arguments = {**self.choice.arguments, name: value}
        return replace(self, choice=replace(self.choice, arguments=arguments))

    def _trace(self, runner: Runner) -> Trace:
        """Run it and return what it asks of allocators."""
        given = {} if self.batch is None else {"batch_size": self.batch}
        of_keras = {**self.of_keras, **given}
        job = Job(
            name=self.program.name,
            program=self.program,
            choice=self.choice,
            framework=self.framework,
            path=search_path(),
            mode=Mode.FAKE if self.framework == "torch" else Mode.TRACED,
            device=self.place.kind,
            card=self.place.card,
            batch=self.batch,
            batch_argument=self.batch_argument,
            steps=self.steps,
            world_size=self.world_size,
            of_keras={_ASKED.get(name, name): each for name, each in of_keras.items()},
        )
        with Bar(self.program.name, self.steps, "step") as bar:
            trace = runner.run(job, bar.done)
        if isinstance(trace, Trouble):
            if trace.kind is Reason.USAGE:
                raise UsageError(trace.text)
            raise ProgramFailed(trace)
        assert isinstance(trace, Trace)
        if trace.batch is None and self.of_keras:
            raise UsageError(
                f"{', '.join(self.of_keras)}: these are arguments of Keras models, and"
                f" {self.program.name} makes none"
            )
        return trace
