"""A Keras model on TensorFlow that a program makes or trains, met while steps are estimated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from tensorlens.frameworks.keras import kinds
from tensorlens.records.cards import Card
from tensorlens.records.traces import Trace


def intercept(begin: Callable[[], Any], stack: ExitStack) -> Any:
    """Begin a program; where it makes or trains a Keras model, that ends it.

    Args:
        begin: begins it.
        stack: as long as it is open, training is intercepted.

    Raises:
        Training: of ``frameworks.tensorflow.estimate.training``.
    """
    made = begin()
    if kinds.backend() == "tensorflow":
        from tensorlens.frameworks.tensorflow.estimate.training import (
            Training,
            training_intercepted,
        )

        if isinstance(made, kinds.model()):
            raise Training(made)
        stack.enter_context(training_intercepted())
    return made


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
