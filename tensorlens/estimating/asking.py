"""``estimate()``: what a program's steps will need, from a run on fake tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorlens.allocators import Settings
from tensorlens.errors import UsageError
from tensorlens.estimating.assembling import assemble
from tensorlens.estimating.cards import find_card
from tensorlens.estimating.keras import is_keras_model, keras_question
from tensorlens.estimating.programs import MakeStep, program, search_path
from tensorlens.estimating.progress import Bar
from tensorlens.estimating.worker import Worker
from tensorlens.frameworks.torch.fake.jobs import Job, Program
from tensorlens.records.cards import Card
from tensorlens.records.estimates import Estimate
from tensorlens.records.traces import Trace
from tensorlens.units import format_bytes, parse_bytes

_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True)
class Question:
    """What is asked of a program, checked."""

    program: Program
    device: str
    card: Card | None
    steps: int
    settings: str
    capacity: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 1

    def ask(self, worker: Worker, positional: Sequence[Any] = ()) -> Estimate:
        """Run it and return the answer."""
        return self.answer(self.trace(worker, positional))

    def trace(self, worker: Worker, positional: Sequence[Any] = ()) -> Trace:
        """Run it and return what it asks of allocators."""
        job = Job(
            program=self.program,
            device=self.device.partition(":")[0],
            card=self.card,
            steps=self.steps,
            path=search_path(),
            options=dict(self.options),
            positional=positional,
            world_size=self.world_size,
        )
        with Bar(self.program.name, self.steps) as bar:
            return worker.run(job, bar.done)

    def answer(self, trace: Trace) -> Estimate:
        """Return what a trace comes to."""
        return assemble(
            trace,
            device=self.device,
            card=self.card,
            settings=self.settings,
            capacity=self.capacity,
            program=self.program.name,
        )


def question(
    make_step: MakeStep,
    *,
    device: str = "cuda",
    card: str | Card | None = None,
    steps: int = 2,
    capacity: int | str | None = None,
    settings: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    world_size: int = 1,
    script_args: Sequence[str] = (),
) -> Question:
    """Return what is asked, with everything checked that can be without running it.

    Raises:
        UsageError: something of it makes no sense; one line says what.
    """
    if device.partition(":")[0] not in ("cuda", "cpu"):
        raise UsageError(f"device={device!r}: cuda and cpu can be estimated")
    if not isinstance(steps, int) or steps < 1:
        raise UsageError(f"steps={steps}: how many steps are run, at least 1")
    if world_size < 1:
        raise UsageError(f"world_size={world_size}: how many processes there are, at least 1")
    if settings is None:
        settings = next((os.environ[name] for name in _VARIABLES if name in os.environ), "")
    Settings.parse(settings)
    found = None if device == "cpu" else card if isinstance(card, Card) else find_card(card)
    wanted = None if capacity is None else parse_bytes(capacity)
    if card is not None and found is not None and wanted is not None and wanted > found.memory:
        raise UsageError(
            f"capacity={capacity}: a {found.name} has {format_bytes(found.memory)}; leave one of"
            " them out"
        )
    return Question(
        program=program(make_step, script_args),
        device=device,
        card=found,
        steps=steps,
        settings=settings,
        capacity=wanted,
        options=dict(arguments or {}),
        world_size=world_size,
    )


def estimate(
    make_step: MakeStep | Any,
    *,
    device: str = "cuda",
    card: str | Card | None = None,
    steps: int = 2,
    capacity: int | str | None = None,
    settings: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    world_size: int = 1,
    script_args: Sequence[str] = (),
    **of_keras: Any,
) -> Estimate:
    """Return what a program's training steps will need on a card that need not be there.

    The steps run on fake tensors, which have shapes and no bytes, in a process of its own; what
    they ask for is given to a simulator of torch's caching allocator.

    Args:
        make_step: builds model, optimizer and data and returns ``step()``, which runs one step; if
            it returns None it was the whole program, whose steps are counted by its optimizer.
            Or ``"module:function"``, ``"file.py:function"``, or a script. Or a Keras model, whose
            train step is traced in this process without data, as it is compiled.
        device: ``cuda``, or ``cpu`` for host memory.
        card: the card's name: ``h100``, ``rtx 3090``.
        steps: how many are run: optimizers make their state in the first one.
        capacity: bytes of the card to fit into, or a text such as ``24 GiB``.
        settings: what ``PYTORCH_CUDA_ALLOC_CONF`` will be; by default what it is now.
        arguments: keyword arguments of ``make_step``.
        world_size: how many processes train together; the figures are of one.
        script_args: what a script finds in ``sys.argv[1:]``.
        of_keras: of a Keras model: ``batch_size`` (32), and what it is compiled with where that
            is to be different: ``optimizer``, ``loss``, ``policy`` (``"mixed_float16"``),
            ``run_eagerly``; ``input_shape`` without the batch, where the model has none.

    Raises:
        UsageError: something of it makes no sense; one line says what.
        ProgramFailed: the program raised an error.
    """
    if is_keras_model(make_step):
        return keras_question(
            make_step, device=device, card=card, capacity=capacity, **of_keras
        ).ask()
    if of_keras:
        raise UsageError(f"{', '.join(of_keras)}: these are arguments of Keras models")
    asked = question(
        make_step,
        device=device,
        card=card,
        steps=steps,
        capacity=capacity,
        settings=settings,
        arguments=arguments,
        world_size=world_size,
        script_args=script_args,
    )
    with Worker() as worker:
        return asked.ask(worker)


def estimate_cards(
    make_step: MakeStep, cards: Sequence[str | Card], **options: Any
) -> Mapping[str, Estimate]:
    """Return the estimate for each of several cards, by the cards' full names.

    Args:
        make_step: as for :func:`estimate`.
        cards: their names.
        options: as for :func:`estimate`.

    Raises:
        UsageError: something of it makes no sense; one line says what.
        ProgramFailed: the program raised an error.
    """
    asked = [question(make_step, card=card, **options) for card in cards]
    found = {}
    for each in asked:
        with Worker() as worker:
            answer = each.ask(worker)
        found["" if answer.card is None else answer.card.name] = answer
    return found
