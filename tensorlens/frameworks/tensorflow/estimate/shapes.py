"""Inputs and targets of a model as TensorFlow's specifications."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorlens.frameworks.keras.train_steps import shapes
from tensorlens.frameworks.tensorflow.estimate.asked import Asked


def inputs_of(model: Any, asked: Asked) -> tuple[Any, list[str]]:
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
