"""A Keras model that a program makes or trains, met where its steps are estimated or measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.import_hooks import when_imported
from tensorlens.frameworks.keras import kinds
from tensorlens.planning.card import Card
from tensorlens.planning.trace import Caution, Trace

SAMPLES = 32
"""Of a batch, where nothing names another number: Keras's own ``batch_size``."""
_SHAPES = ("input_shape", "input_dtype")
_ENDED = (
    "the program was ended where it trains {}: what it does later, the training of another model"
    " say, is not in the figures"
)
_OWN_LOOP = (
    "the program trains no Keras model with fit() or train_on_batch(), and runs nothing of torch: a"
    " loop of its own on TensorFlow cannot be estimated; measure it with tensorlens run --record,"
    " or let a function return the compiled model"
)


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
        from tensorlens.planning.tensorflow.training import Training

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
    from tensorlens.planning.keras.shapes import train_step

    return train_step(model, size, **shapes)


def ended_at_training(begin: Callable[[], Any]) -> Any:
    """Begin a program, and end it where it trains a Keras model on TensorFlow itself.

    Keras may be imported on the way. TensorFlow's own steps are not run on fake tensors: a script
    that calls ``fit()`` would be trained to its end.
    """
    _name_from_one()
    with ExitStack() as stack:
        stack.callback(when_imported("keras", lambda: stack.enter_context(intercepted()) and None))
        try:
            return begin()
        except BaseException as error:
            if _is_training(error):
                error.is_of_program = True  # type: ignore[attr-defined]
            raise


def intercepted() -> AbstractContextManager[None]:
    """Return what ends a program where it trains a Keras model on TensorFlow."""
    if kinds.backend() != "tensorflow":
        return nullcontext()
    from tensorlens.planning.tensorflow.training import training_intercepted

    return training_intercepted()


def traced(
    error: BaseException, device: str, card: Card | None, options: Mapping[str, Any]
) -> Trace | None:
    """Return the trace of the training that ended a program; None where that ended otherwise."""
    if not _is_training(error):
        return None
    from tensorlens.planning.tensorflow.training import Training, trace_training

    assert isinstance(error, Training)
    trace = trace_training(error, device, card, options)
    if error.is_of_program:
        trace.cautions.append(Caution(_ENDED.format(error.model.name)))
    return trace


def check_is_of_torch(trace: Trace) -> None:
    """Refuse a program that has nothing of torch and a training loop of its own on TensorFlow.

    Raises:
        UsageError: it is one.
    """
    if not trace.log.devices and "tensorflow" in sys.modules:
        raise UsageError(_OWN_LOOP)


def _name_from_one() -> None:
    """Let Keras number its layers anew: the program may have made the same model for other batches.

    Nothing else of its state is touched (keras/src/utils/naming.py, 3.15).
    """
    state = sys.modules.get("keras.src.backend.common.global_state")
    if state is not None:
        state.set_global_attribute("object_name_uids", None)


def _is_training(error: BaseException) -> bool:
    if kinds.backend() != "tensorflow":
        return False
    from tensorlens.planning.tensorflow.training import Training

    return isinstance(error, Training)
