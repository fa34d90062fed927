"""A train step of a compiled Keras model on a batch of zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorlens.frameworks.keras.train_steps.shapes import inputs_of, targets_of


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
