"""The request for a trace of a Keras model, and the shapes of its inputs and targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tensorlens.planning.card import Card
from tensorlens.planning.keras import shapes


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One question, checked."""

    batch: int
    optimizer: Any = None
    """A name or a Keras optimizer; None: the one that the model is compiled with."""
    loss: Any = None
    policy: str | None = None
    """``mixed_float16``; None: what the model has."""
    eager: bool = False
    """Whether the step is run operation by operation (``run_eagerly=True``)."""
    device: str = "cuda"
    """``cuda`` or ``cpu``."""
    card: Card | None = None
    input_shape: Any = None
    """Shape of the inputs without the batch, where the model does not know it."""
    input_dtype: str | None = None
    """Of inputs whose type the model does not tell; None: Keras's default for floats."""


def inputs_of(model: Any, asked: TraceRequest) -> tuple[Any, list[str]]:
    """Return the structure of the inputs, with the batch, and their names.

    Raises:
        UsageError: the model does not know their shapes, and they were not given.
    """
    found, names = shapes.inputs_of(model, asked.batch, asked.input_shape, asked.input_dtype)
    return tf.nest.map_structure(_specification, found), names


def targets_of(model: Any, inputs: Any, loss: Any) -> Any:
    """Return the structure of the targets: as the outputs, or classes for a sparse loss."""
    import keras

    given = tf.nest.map_structure(
        lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), inputs
    )
    found = shapes.targets_of(model, given, loss)
    return None if found is None else tf.nest.map_structure(_specification, found)


def _specification(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)
