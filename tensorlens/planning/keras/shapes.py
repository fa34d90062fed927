"""Shapes of what a model is given, its inputs and targets, and a train step on zeros of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds

TYPES_ARE_GUESSED = (
    "the model does not tell which type its inputs have: they are taken for floats of Keras's "
    "default; input_dtype= says otherwise"
)
"""Message on a model that :func:`tells_types` is False of."""


def inputs_of(model: Any, batch: int, shape: Any, dtype: str | None) -> tuple[Any, list[str]]:
    """Return the structure of a model's inputs, as ``KerasTensor``, and their names.

    Args:
        model: a Keras model.
        batch: the first dimension of each.
        shape: of the input without the batch, or one for each input, where the model has none.
        dtype: of inputs whose type the model does not tell; by default ``keras.config.floatx()``,
            as Keras casts what it is given and not what is given to it.

    Raises:
        UsageError: the model does not know their shapes, and they were not given.
    """
    import keras

    dtype = dtype or keras.config.floatx()
    structure = _symbolic_inputs(model)
    if structure is None:
        structure = _shapes_as_built(model, dtype)
    if structure is None:
        if shape is None:
            advice = "call it once, or give input_shape=, the shape without the batch"
            if kinds.is_inherited(model, "call"):
                advice = "it has no call(); give input_shape=, that of one sample that fit() takes"
            raise UsageError(
                f"{type(model).__name__} does not know the shape of its inputs: {advice}"
            )
        return keras.KerasTensor((batch, *shape), dtype), ["input"]
    flat = keras.tree.flatten(structure)
    given = _given(shape, len(flat))
    found, names = [], []
    for number, each in enumerate(flat):
        dimensions = tuple(each.shape[1:] if given is None else given[number])
        name = _name_of(each) or f"input{number or ''}"
        if None in dimensions:
            raise UsageError(
                f"{name} has the shape {dimensions}, of which not all is known: give input_shape=, "
                "the shape without the batch"
            )
        found.append(keras.KerasTensor((batch, *dimensions), each.dtype))
        names.append(name)
    return keras.tree.pack_sequence_as(structure, found), names


def tells_types(model: Any) -> bool:
    """Tell whether a model knows the types of its inputs, and not their shapes alone."""
    return _symbolic_inputs(model) is not None


def targets_of(model: Any, inputs: Any, loss: Any) -> Any:
    """Return the structure of the targets: as the outputs, or classes for a sparse loss.

    Args:
        model: it is called with symbolic tensors.
        inputs: what :func:`inputs_of` returned.
        loss: what it is compiled with; None: there are no targets.
    """
    import keras

    if loss is None:
        return None
    outputs = model.compute_output_spec(inputs)
    flat = keras.tree.flatten(outputs)
    is_one = not isinstance(loss, (dict, list, tuple))
    kinds = [loss] * len(flat) if is_one else keras.tree.flatten(loss)
    found = []
    for output, kind in zip(flat, kinds, strict=False):
        is_sparse = "sparse" in _kind(kind).lower()
        shape = output.shape[:-1] if is_sparse else output.shape
        found.append(keras.KerasTensor(shape, "int32" if is_sparse else "float32"))
    return keras.tree.pack_sequence_as(outputs, found)


def _symbolic_inputs(model: Any) -> Any:
    """Return what a functional model was made of, also the one in a ``Sequential``."""
    found = getattr(model, "_inputs_struct", None)
    # a symbolic tensor has no truth
    if found is None:
        found = getattr(getattr(model, "_functional", None), "_inputs_struct", None)
    return found


def _shapes_as_built(model: Any, dtype: str) -> Any:
    """Return the inputs that a model of one's own was built for; of which type nobody knows."""
    import keras

    shapes = getattr(model, "_build_shapes_dict", None)
    if not shapes:
        return None
    only = [*shapes.values()]

    def symbolic(shape: Any) -> Any:
        if isinstance(shape, tuple):
            return keras.KerasTensor(shape, dtype)
        if isinstance(shape, dict):
            return {key: symbolic(each) for key, each in shape.items()}
        return [symbolic(each) for each in shape]

    return symbolic(only[0] if len(only) == 1 else only)


def _name_of(tensor: Any) -> str | None:
    name: str | None = getattr(tensor, "name", None)
    # those that were made here have a number alone
    return None if name is None or name.startswith("keras_tensor") else name


def _given(shape: Any, count: int) -> Any:
    if shape is None:
        return None
    return [shape] if count == 1 and not isinstance(shape[0], (tuple, list)) else list(shape)


def _kind(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    return str(getattr(loss, "__name__", type(loss).__name__))


def train_step(
    model: Any, batch: int, *, input_shape: Any = None, input_dtype: str | None = None
) -> Callable[[], None]:
    """Make one batch and return what trains the model with it, as ``fit`` does with each batch.

    Args:
        model: compiled; it is built if it is not yet.
        batch: samples of a step.
        input_shape: without the batch, where the model has none.
        input_dtype: of inputs whose type the model does not tell.

    Raises:
        UsageError: the shapes of the model's inputs are not known.
    """
    import keras

    wanted, _ = inputs_of(model, batch, input_shape, input_dtype)
    if not model.built:
        model(wanted)
    goals = targets_of(model, wanted, model.loss)
    inputs = keras.tree.map_structure(_zeros, wanted)
    targets = None if goals is None else keras.tree.map_structure(_zeros, goals)

    def step() -> None:
        model.train_on_batch(inputs, targets)

    return step


def _zeros(spec: Any) -> Any:
    from keras import ops

    return ops.zeros(spec.shape, dtype=spec.dtype)
