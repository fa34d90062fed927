"""Shapes of what a model is given: its inputs, and the targets that its loss wants."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorlens.errors import UsageError
from tensorlens.frameworks.tensorflow.estimate.asked import Asked


def inputs_of(model: Any, asked: Asked) -> tuple[Any, list[str]]:
    """Return the structure of the inputs, as specifications with the batch, and their names.

    Raises:
        UsageError: the model does not know their shapes, and they were not given.
    """
    structure = _structure(model)
    if structure is None:
        if asked.input_shape is None:
            raise UsageError(
                f"{type(model).__name__} does not know the shape of its inputs: call it once, or "
                "give input_shape=, the shape without the batch"
            )
        dtype = getattr(model, "input_dtype", None) or "float32"
        spec = tf.TensorSpec((asked.batch, *asked.input_shape), dtype)
        return spec, ["input"]
    flat = tf.nest.flatten(structure)
    given = _given(asked.input_shape, len(flat))
    specs, names = [], []
    for number, each in enumerate(flat):
        shape = tuple(each.shape[1:])
        if given is not None:
            shape = tuple(given[number])
        name = getattr(each, "name", None) or f"input{number or ''}"
        if None in shape:
            raise UsageError(
                f"{name} has the shape {shape}, of which not all is known: give input_shape=, "
                "the shape without the batch"
            )
        specs.append(tf.TensorSpec((asked.batch, *shape), each.dtype))
        names.append(name)
    return tf.nest.pack_sequence_as(structure, specs), names


def _structure(model: Any) -> Any:
    found = getattr(model, "_inputs_struct", None)
    if found is None:
        inner = getattr(model, "_functional", None)
        found = getattr(inner, "_inputs_struct", None)
    if found is None:
        shapes = getattr(model, "_build_shapes_dict", None)
        if shapes:
            only = list(shapes.values())
            found = tf.nest.map_structure(_spec, only[0] if len(only) == 1 else only)
            if isinstance(only[0], tuple) and len(only) == 1:
                found = tf.TensorSpec(only[0], "float32")
    return found


def _spec(shape: Any) -> Any:
    return tf.TensorSpec(shape, "float32")


def _given(shape: Any, count: int) -> Any:
    if shape is None:
        return None
    return [shape] if count == 1 and not isinstance(shape[0], (tuple, list)) else list(shape)


def targets_of(model: Any, inputs: Any, loss: Any) -> Any:
    """Return the structure of the targets: as the outputs, or classes for a sparse loss."""
    import keras

    if loss is None:
        return None
    given = tf.nest.map_structure(lambda spec: keras.KerasTensor(spec.shape, spec.dtype), inputs)
    outputs = model.compute_output_spec(given)
    losses = loss if not isinstance(loss, (dict, list, tuple)) else None
    flat = tf.nest.flatten(outputs)
    kinds = [losses] * len(flat) if losses is not None else tf.nest.flatten(loss)
    specs = []
    for output, kind in zip(flat, kinds, strict=False):
        if "sparse" in _name(kind).lower():
            specs.append(tf.TensorSpec(output.shape[:-1], tf.int32))
        else:
            specs.append(tf.TensorSpec(output.shape, tf.float32))
    return tf.nest.pack_sequence_as(outputs, specs)


def _name(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    return str(getattr(loss, "__name__", type(loss).__name__))
