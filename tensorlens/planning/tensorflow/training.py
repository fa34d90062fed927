"""The training that a program begins: its Keras model and batch, traced in place of being run."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tensorlens.planning.card import Card
from tensorlens.planning.patches import wrapped
from tensorlens.planning.tensorflow.request import TraceRequest
from tensorlens.planning.tensorflow.run import run
from tensorlens.planning.trace import Trace


class Training(BaseException):
    """Ends a program where it would train a model.

    Args:
        model: a Keras model.
        inputs: what it is given: arrays or tensors; None: not known.
        batch: how many samples; None: as many as the inputs have.
    """

    def __init__(self, model: Any, inputs: Any = None, batch: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.batch = batch
        self.is_of_program = False
        """Whether the program trains by itself, and not in a step that it returned."""
        self.shape: tuple[int, ...] | None = None
        """Of the first input, without the batch."""
        if inputs is not None:
            first = tf.nest.flatten(inputs)[0]
            shape = tuple(getattr(first, "shape", ()))
            self.batch = batch or int(shape[0] if shape else len(first))
            self.shape = shape[1:]


@contextmanager
def training_intercepted() -> Iterator[None]:
    """Raise :class:`Training` where ``fit()`` or ``train_on_batch()`` is called meanwhile."""

    def of_batch(train: Any) -> Any:
        @functools.wraps(train)
        def train_on_batch(model: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
            raise Training(model, x)

        return train_on_batch

    def of_data(train: Any) -> Any:
        @functools.wraps(train)
        def fit(
            model: Any, x: Any = None, y: Any = None, batch_size: Any = None, **kwargs: Any
        ) -> Any:
            if not all(hasattr(each, "shape") for each in tf.nest.flatten(x)):
                x = next(iter(x))
                raise Training(model, x[0] if isinstance(x, tuple) else x)
            size = min(batch_size or 32, int(tf.nest.flatten(x)[0].shape[0]))
            raise Training(model, x, size)

        return fit

    with wrapped(keras.Model, "train_on_batch", of_batch), wrapped(keras.Model, "fit", of_data):
        yield


def trace_training(
    training: Training, device: str, card: Card | None, options: Mapping[str, Any] | None = None
) -> Trace:
    """Return what one train step asks of allocators.

    Args:
        training: the model, and its batch.
        device: ``cuda`` or ``cpu``.
        card: whose memory it is.
        options: of :class:`.request.TraceRequest`, which go before what the training tells.
    """
    model = training.model
    known: dict[str, Any] = {"batch": training.batch or 32, "eager": bool(model.run_eagerly)}
    if not model.built and training.shape is not None:
        known["input_shape"] = training.shape
    return run(model, TraceRequest(**{**known, **(options or {}), "device": device, "card": card}))
