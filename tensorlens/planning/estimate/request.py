"""A request: a target (a program or a Keras model), a card and a capacity, checked in one place.

Every function that estimates resolves what it is given here, and adds its own arguments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tensorlens.errors import UsageError
from tensorlens.planning.allocators.settings import Settings, settings_text
from tensorlens.planning.card import Card
from tensorlens.planning.estimate.cards import Place, place
from tensorlens.planning.estimate.keras import check_options, is_keras_model, keras_request
from tensorlens.planning.estimate.result import Estimate
from tensorlens.planning.estimate.target import MakeStep, StepsRequest, program
from tensorlens.planning.processes import Runner
from tensorlens.planning.trials.jobs import Choice


class Request(Protocol):
    """An estimate's program and place."""

    @property
    def place(self) -> Place:
        """The card or the host."""

    def ask(self, runner: Runner) -> Estimate:
        """Run or trace it and return the answer."""

    def with_batch(self, batch: int) -> Request:
        """Return the same request for a batch."""

    def with_argument(self, name: str, value: int) -> Request:
        """Return the same request with an argument of ``make_step``."""


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
        choice=Choice({}, dict(arguments or {})),
        world_size=world_size,
        of_keras=of_keras,
    )


def settings_of(given: str | None) -> str:
    """Return what torch's allocator will be set to: what was given, else what it is set to now.

    Raises:
        UsageError: it is no such setting.
    """
    settings = settings_text(os.environ) if given is None else given
    Settings.parse(settings)
    return settings
