"""A Keras model that a program makes or trains, met where its steps are estimated or measured."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.records.cards import Card
from tensorlens.records.traces import Trace

SAMPLES = 32
"""Of a batch, where nothing names another number: Keras's own ``batch_size``."""
_SHAPES = ("input_shape", "input_dtype")


def step_of(
    made: Any, batch: int | None, options: Mapping[str, Any] | None = None, *, estimated: bool
) -> Any:
    """Return what runs a train step where a program made a Keras model, else what it made.

    Args:
        made: what the program's function returned.
        batch: samples of a step; None: :data:`SAMPLES`.
        options: what else is asked of a Keras model.
        estimated: whether the step is traced where TensorFlow would run it.

    Raises:
        UsageError: it is not compiled, or something is asked that only its tracing can do.
    """
    if not isinstance(made, kinds.model()):
        return made
    size = batch or SAMPLES
    if estimated and kinds.backend() == "tensorflow":
        from tensorlens.frameworks.tensorflow.estimate.training import Training

        def trained() -> None:
            raise Training(made, batch=size)

        return trained
    given = dict(options or {})
    shapes = {name: given.pop(name) for name in _SHAPES if name in given}
    if given:
        raise UsageError(f"{', '.join(given)}: on {kinds.backend()}, let the function compile so")
    model: Any = made
    if not model.compiled:
        raise UsageError(f"{model.name} is not compiled: let the function compile it")
    from tensorlens.frameworks.keras.train_steps.zeros import train_step

    return train_step(model, size, **shapes)


def intercepted() -> AbstractContextManager[None]:
    """Return what ends a program where it trains a Keras model on TensorFlow."""
    if kinds.backend() != "tensorflow":
        return nullcontext()
    from tensorlens.frameworks.tensorflow.estimate.training import training_intercepted

    return training_intercepted()


def traced(
    error: BaseException, device: str, card: Card | None, options: Mapping[str, Any]
) -> Trace | None:
    """Return the trace of the training that ended a program; None where that ended otherwise."""
    if kinds.backend() != "tensorflow":
        return None
    from tensorlens.frameworks.tensorflow.estimate.training import Training, trace_training

    if not isinstance(error, Training):
        return None
    return trace_training(error, device, card, options)
