"""The training of a Keras model that a program begins, traced in place of being run.

Keras is imported by then, on any backend: no batch of real data is needed, but for its shapes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.registry import when_imported
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
        """Of the only input, without the batch."""
        if inputs is not None:
            first, *others = _flat(inputs)
            shape = tuple(getattr(first, "shape", ()))
            self.batch = batch or int(shape[0] if shape else len(first))
            self.shape = None if others else shape[1:]


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


def _fit(
    model: Any, x: Any = None, y: Any = None, batch_size: Any = None, *args: Any, **kwargs: Any
) -> Any:
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
    from tensorlens.planning.tensorflow.tracing import TraceRequest
    from tensorlens.planning.tensorflow.train_step import train_step_trace

    model = error.model
    known: dict[str, Any] = {"batch": error.batch or SAMPLES, "eager": bool(model.run_eagerly)}
    if error.shape is not None:
        try:
            inputs_of(model, 1, None, None)
        except UsageError:
            known["input_shape"] = error.shape
    trace = train_step_trace(
        model, TraceRequest(**{**known, **options, "device": device, "card": card})
    )
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
    if shape is not None and len(flat) == 1 and not isinstance(shape[0], (tuple, list)):
        shape = [shape]
    found, names = [], []
    for number, each in enumerate(flat):
        dimensions = tuple(each.shape[1:] if shape is None else shape[number])
        name: str | None = getattr(each, "name", None)
        # those that were made here have a number alone
        if name is None or name.startswith("keras_tensor"):
            name = f"input{number or ''}"
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
    names = getattr(model, "output_names", None)
    if isinstance(loss, dict) and names and not isinstance(outputs, dict):
        loss = [loss.get(name) for name in names]
    is_one = not isinstance(loss, (dict, list, tuple))
    losses = [loss] * len(flat) if is_one else keras.tree.flatten(loss)
    found = []
    for output, each in zip(flat, losses, strict=False):
        name = each if isinstance(each, str) else getattr(each, "__name__", type(each).__name__)
        is_sparse = "sparse" in str(name).lower()
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

    def zeros(spec: Any) -> Any:
        return keras.ops.zeros(spec.shape, dtype=spec.dtype)

    wanted, _ = inputs_of(model, batch, input_shape, input_dtype)
    if not model.built:
        model(wanted)
    goals = targets_of(model, wanted, model.loss)
    inputs = keras.tree.map_structure(zeros, wanted)
    targets = None if goals is None else keras.tree.map_structure(zeros, goals)

    def step() -> None:
        model.train_on_batch(inputs, targets)

    return step
