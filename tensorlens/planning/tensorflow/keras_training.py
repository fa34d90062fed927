"""The training of a Keras model that a program begins: traced in place of being run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.import_hooks import when_imported
from tensorlens.frameworks.keras import kinds
from tensorlens.planning.card import Card
from tensorlens.planning.patches import patched
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


class Training(BaseException):
    """Ends a program where it would train a model of Keras on TensorFlow.

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
            first = _flat(inputs)[0]
            shape = tuple(getattr(first, "shape", ()))
            self.batch = batch or int(shape[0] if shape else len(first))
            self.shape = shape[1:]


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
        stack.callback(
            when_imported("keras", lambda: stack.enter_context(training_patches()) and None)
        )
        try:
            return begin()
        except Training as training:
            training.is_of_program = True
            raise


@contextmanager
def training_patches() -> Iterator[None]:
    """Raise :class:`Training` where a model is trained meanwhile, if Keras runs on TensorFlow."""
    if kinds.backend() != "tensorflow":
        yield
        return
    model = kinds.model()
    with patched(model, "train_on_batch", _train_on_batch), patched(model, "fit", _fit):
        yield


def _train_on_batch(model: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    raise Training(model, x)


def _fit(model: Any, x: Any = None, y: Any = None, batch_size: Any = None, **kwargs: Any) -> Any:
    if not all(hasattr(each, "shape") for each in _flat(x)):
        x = next(iter(x))
        raise Training(model, x[0] if isinstance(x, tuple) else x)
    raise Training(model, x, min(batch_size or SAMPLES, int(_flat(x)[0].shape[0])))


def _flat(inputs: Any) -> list[Any]:
    import keras

    return list(keras.tree.flatten(inputs))


def traced(
    error: BaseException, device: str, card: Card | None, options: Mapping[str, Any]
) -> Trace | None:
    """Return the trace of the training that ended a program; None where that ended otherwise.

    Args:
        error: what ended it.
        device: ``cuda`` or ``cpu``.
        card: whose memory it is.
        options: of a ``TraceRequest``, which go before what the training tells.
    """
    if not isinstance(error, Training):
        return None
    from tensorlens.planning.tensorflow.graph.tracing import TraceRequest
    from tensorlens.planning.tensorflow.run import run

    model = error.model
    known: dict[str, Any] = {"batch": error.batch or SAMPLES, "eager": bool(model.run_eagerly)}
    if not model.built and error.shape is not None:
        known["input_shape"] = error.shape
    trace = run(model, TraceRequest(**{**known, **options, "device": device, "card": card}))
    if error.is_of_program:
        trace.cautions.append(Caution(_ENDED.format(model.name)))
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
