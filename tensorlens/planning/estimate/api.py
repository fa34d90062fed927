"""``estimate()``: what a program's steps will need, from a run on fake tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.planning.allocators.settings import Settings, settings_text
from tensorlens.planning.card import Card, device_spec
from tensorlens.planning.estimate.result import Estimate
from tensorlens.planning.estimate.target import (
    STEPS,
    KerasRequest,
    MakeStep,
    StepsRequest,
    check_options,
    keras_request,
    program,
    search_path,
)
from tensorlens.planning.processes import Runner, shared_runner
from tensorlens.planning.trials.jobs import Choice, Job


def estimate(
    make_step: MakeStep | Any,
    *,
    device: str = "cuda",
    card: str | Card | None = None,
    steps: int = STEPS,
    capacity: int | str | None = None,
    settings: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    world_size: int = 1,
    script_args: Sequence[str] = (),
    **of_keras: Any,
) -> Estimate:
    """Predict the memory of a program's training steps: that of a GPU without the GPU.

    The steps run on fake tensors, which have shapes and no bytes, in a process of its own; what
    they ask for is given to a simulator of torch's caching allocator.

    Args:
        make_step: builds model, optimizer and data and returns ``step()``, which runs one step; if
            it returns None it was the whole program, whose steps are counted by its optimizer. It
            may return a compiled Keras model, or a step that trains one.
            Or ``"module:function"``, ``"file.py:function"``, or a script. Or a Keras model on
            TensorFlow, whose train step is traced in this process without data, as it is compiled.
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
            ``run_eagerly``; ``input_shape`` without the batch, and ``input_dtype``, where the model
            has none.

    Raises:
        UsageError: something of it makes no sense; one line says what.
        ProgramFailed: the program raised an error.
    """
    asked = request(
        make_step,
        device=device,
        card=card,
        steps=steps,
        capacity=capacity,
        settings=settings,
        arguments=arguments,
        world_size=world_size,
        script_args=script_args,
        **of_keras,
    )
    with shared_runner(keeps=True) as runner:
        return asked.ask(runner)


def estimate_cards(
    make_step: MakeStep | Any, cards: Sequence[str | Card], **options: Any
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
    if isinstance(cards, str | Card) or not cards:
        raise UsageError(f'cards={cards!r}: give a list of names: ["t4", "a100-80gb"]')
    requests = [request(make_step, card=card, **options) for card in cards]
    with Runner() as runner:
        answers = [each.ask(runner) for each in requests]
    return {"" if each.card is None else each.card.name: each for each in answers}


def request(
    target: MakeStep | Any,
    *,
    device: str = "cuda",
    card: str | Card | None = None,
    capacity: int | str | None = None,
    steps: int = STEPS,
    settings: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    world_size: int = 1,
    script_args: Sequence[str] = (),
    **of_keras: Any,
) -> StepsRequest | KerasRequest:
    """Return what :func:`estimate` is asked, with everything checked that can be."""
    spec = device_spec(device, card, capacity)
    settings = allocator_settings(settings)
    for name, number in {"steps": steps, "world_size": world_size}.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UsageError(f"{name}={number!r}: it is a number, at least 1")
    if isinstance(target, kinds.model()):
        if arguments or script_args or world_size > 1:
            raise UsageError(
                "arguments, script_args and world_size are for a make_step, and this is a Keras"
                " model"
            )
        return keras_request(target, spec, **of_keras)
    check_options(of_keras)
    asked = program(target, script_args)
    job = Job(asked.name, asked, Choice({}, dict(arguments or {})), "torch", search_path())
    job = replace(job, steps=steps, world_size=world_size, of_keras=of_keras)
    return StepsRequest(job, spec, settings)


def allocator_settings(given: str | None) -> str:
    """Return what torch's allocator will be set to: what was given, else what it is set to now."""
    settings = settings_text(os.environ) if given is None else given
    Settings.parse(settings)
    return settings
