"""What is asked of a program, checked, and how it is answered by a run on fake tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorlens.allocators import Settings
from tensorlens.errors import UsageError
from tensorlens.estimating.assembling import assemble
from tensorlens.estimating.cards import find_card
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
        settings=settings_of(settings),
        capacity=wanted,
        options=dict(arguments or {}),
        world_size=world_size,
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
