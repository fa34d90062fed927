"""A trial estimated: what its step would train is traced, in place of being trained."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tensorlens.frameworks.caller import restore
from tensorlens.frameworks.tensorflow.estimate.asked import Asked
from tensorlens.frameworks.tensorflow.estimate.run import run
from tensorlens.frameworks.tensorflow.options.keras_here import keras
from tensorlens.frameworks.tensorflow.options.program import optioned
from tensorlens.frameworks.trials import CannotApply, Trial
from tensorlens.frameworks.trying.stage import wrapped
from tensorlens.records.traces import Trace

_OWN_LOOP = (
    "an estimate traces what train_on_batch() or fit() of a compiled Keras model would train, and"
    " the step calls neither; measure it"
)


def trace(trial: Trial) -> Trace:
    """Return what one train step asks of allocators.

    The program builds its model and its data for real, with the option around it; its step runs to
    where a model would be trained.

    Raises:
        CannotApply: the option, or the step, cannot be estimated.
    """
    library = keras("an estimate")
    restore(trial.program.caller, trial.program.carried)
    made = optioned(trial, trial.batch, estimated=True)
    step = made.begin()
    if step is None:
        raise CannotApply("an estimate needs a make_step() that returns step()")
    wanted = _wanted(step, library)
    device = "cpu" if trial.device == "cpu" else "cuda"
    asked = Asked(
        wanted.batch,
        eager=wanted.model.run_eagerly,
        device=device,
        card=trial.card,
        input_shape=wanted.shape if not wanted.model.built else None,
    )
    try:
        return run(wanted.model, asked)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise CannotApply(f"the train step cannot be traced: {reason}") from error


class _Wanted(BaseException):
    """Ends a step where it would train a model."""

    def __init__(self, model: Any, inputs: Any, batch: int | None) -> None:
        super().__init__()
        first = tf.nest.flatten(inputs)[0]
        self.model = model
        shape = tuple(getattr(first, "shape", ()))
        self.batch = batch or int(shape[0] if shape else len(first))
        self.shape = shape[1:]


def _wanted(step: Any, library: Any) -> _Wanted:
    def of_batch(train: Any) -> Any:
        @functools.wraps(train)
        def train_on_batch(model: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
            raise _Wanted(model, x, None)

        return train_on_batch

    def of_data(train: Any) -> Any:
        @functools.wraps(train)
        def fit(
            model: Any, x: Any = None, y: Any = None, batch_size: Any = None, **kwargs: Any
        ) -> Any:
            if not all(hasattr(each, "shape") for each in tf.nest.flatten(x)):
                x = next(iter(x))
                raise _Wanted(model, x[0] if isinstance(x, tuple) else x, None)
            size = min(batch_size or 32, int(tf.nest.flatten(x)[0].shape[0]))
            raise _Wanted(model, x, size)

        return fit

    with (
        wrapped(library.Model, "train_on_batch", of_batch),
        wrapped(library.Model, "fit", of_data),
    ):
        try:
            step()
        except _Wanted as found:
            return found
    raise CannotApply(_OWN_LOOP)
