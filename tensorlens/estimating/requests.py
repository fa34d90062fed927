"""A request: a target (a program or a Keras model), a card and a capacity, checked in one place.

Every function that estimates resolves what it is given here, and adds its own arguments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tensorlens.allocators import Settings
from tensorlens.errors import UsageError
from tensorlens.estimating.assembling import assemble
from tensorlens.estimating.keras import check_options, is_keras_model, keras_request
from tensorlens.estimating.places import Place, place
from tensorlens.estimating.programs import MakeStep, program, search_path
from tensorlens.estimating.progress import Bar
from tensorlens.estimating.worker import Worker
from tensorlens.frameworks.torch.fake.jobs import Job, Program
from tensorlens.records.cards import Card
from tensorlens.records.estimates import Estimate
from tensorlens.records.traces import Trace

_ASKED = {"batch_size": "batch", "run_eagerly": "eager"}
"""Arguments that the tracing of a Keras model calls otherwise."""
_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class Request(Protocol):
    """What is estimated, and where."""

    @property
    def place(self) -> Place:
        """The card or the host."""

    def ask(self, worker: Worker) -> Estimate:
        """Run or trace it and return the answer."""

    def with_batch(self, batch: int) -> Request:
        """Return the same request for a batch."""

    def with_argument(self, name: str, value: int) -> Request:
        """Return the same request with an argument of ``make_step``."""


@dataclass(frozen=True)
class StepsRequest:
    """A program whose steps are run on fake tensors."""

    program: Program
    place: Place
    steps: int
    settings: str
    options: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 1
    positional: Sequence[Any] = ()
    of_keras: Mapping[str, Any] = field(default_factory=dict)
    """What is asked of a Keras model, if the program makes or trains one."""

    def ask(self, worker: Worker) -> Estimate:
        """Run it and return the answer."""
        return self.answer(self.trace(worker))

    def with_batch(self, batch: int) -> StepsRequest:
        """Return the same request, whose function is called with a batch."""
        return replace(self, positional=(batch,))

    def with_argument(self, name: str, value: int) -> StepsRequest:
        """Return the same request with a keyword argument of its function."""
        return replace(self, options={**self.options, name: value})

    def trace(self, worker: Worker) -> Trace:
        """Run it and return what it asks of allocators."""
        of_keras = {**self.of_keras, **dict(zip(("batch_size",), self.positional, strict=False))}
        job = Job(
            program=self.program,
            device=self.place.kind,
            card=self.place.card,
            steps=self.steps,
            path=search_path(),
            options=dict(self.options),
            positional=self.positional,
            world_size=self.world_size,
            of_keras={_ASKED.get(name, name): each for name, each in of_keras.items()},
        )
        with Bar(self.program.name, self.steps) as bar:
            trace = worker.run(job, bar.done)
        if trace.framework != "tensorflow" and self.of_keras:
            raise UsageError(
                f"{', '.join(self.of_keras)}: these are arguments of Keras models, and"
                f" {self.program.name} makes none that TensorFlow runs"
            )
        return trace

    def answer(self, trace: Trace) -> Estimate:
        """Return what a trace comes to."""
        is_of_torch = trace.framework == "torch"
        without_xla = bool(trace.unsimulated) and not is_of_torch
        return assemble(
            trace,
            device=self.place.device,
            card=self.place.card,
            settings=self.settings if is_of_torch else "",
            capacity=self.place.capacity,
            program=f"{self.program.name} without XLA" if without_xla else self.program.name,
        )


def request(
    target: MakeStep | Any,
    *,
    device: str = "cuda",
    card: str | Card | None = None,
    capacity: int | str | None = None,
    steps: int = 2,
    settings: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    world_size: int = 1,
    script_args: Sequence[str] = (),
    **of_keras: Any,
) -> Request:
    """Return what is asked, with everything checked that can be without running it.

    Args:
        target: a program or a Keras model, as for :func:`tensorlens.estimate`.
        device: ``cuda`` or ``cpu``.
        card: the card's name.
        capacity: what it has to fit into.
        steps: how many are run.
        settings: of torch's allocator.
        arguments: of ``make_step``.
        world_size: how many processes train together.
        script_args: of a script.
        of_keras: of a Keras model.

    Raises:
        UsageError: something of it makes no sense; one line says what.
    """
    where = place(device, card, capacity)
    for name, number in {"steps": steps, "world_size": world_size}.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UsageError(f"{name}={number!r}: it is a number, at least 1")
    if is_keras_model(target):
        if arguments or script_args or world_size > 1:
            raise UsageError(
                "arguments, script_args and world_size are for a make_step, and this is a Keras"
                " model"
            )
        return keras_request(target, where, steps, settings_of(settings), **of_keras)
    check_options(of_keras)
    return StepsRequest(
        program=program(target, script_args),
        place=where,
        steps=steps,
        settings=settings_of(settings),
        options=dict(arguments or {}),
        world_size=world_size,
        of_keras=of_keras,
    )


def settings_of(given: str | None) -> str:
    """Return what torch's allocator will be set to: what was given, else what it is set to now.

    Raises:
        UsageError: it is no such setting.
    """
    settings = given
    if settings is None:
        settings = next((os.environ[name] for name in _VARIABLES if name in os.environ), "")
    Settings.parse(settings)
    return settings
