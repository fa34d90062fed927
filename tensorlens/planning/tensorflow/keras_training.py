"""Catches a program's first Keras training, and describes the inputs and targets of its model.

Works with any backend once Keras is imported; of data only the shapes are needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.registry import when_imported
from tensorlens.planning.patches import patched
from tensorlens.planning.trace import Caution, Trace
from tensorlens.planning.trials.jobs import Job

SAMPLES = 32
"""Default batch size, as in Keras."""
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
    """Raised in place of the training of a Keras model on TensorFlow.

    Args:
        model: the Keras model.
        inputs: its arrays or tensors; None if unknown.
        batch: samples in a batch; None: as many as the inputs have.
    """

    def __init__(self, model: Any, inputs: Any = None, batch: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.batch = batch
        self.is_of_program = False
        """Whether the program itself trains, not a step that it returned."""
        self.shape: tuple[int, ...] | None = None
        """Shape of the only input, without the batch; None with several inputs."""
        if inputs is not None:
            first, *others = _flat(inputs)
            shape = tuple(getattr(first, "shape", ()))
            self.batch = batch or int(shape[0] if shape else len(first))
            self.shape = None if others else shape[1:]


def step_of(made: Any, options: Mapping[str, Any], *, estimated: bool) -> Any:
    """Return a train step for a Keras model; anything else is returned as it is.

    Args:
        made: the result of the program's function.
        options: options of Keras models; without ``batch_size`` it is :data:`SAMPLES`.
        estimated: trace the step instead of running it, if Keras runs on TensorFlow.

    Raises:
        UsageError: the model is not compiled, or an option needs the step to be traced.
    """
    if not isinstance(made, kinds.model()):
        return made
    given = dict(options)
    size = given.pop("batch_size", SAMPLES)
    if estimated and kinds.backend() == "tensorflow":

        def trained() -> None:
            raise Training(made, batch=size)

        return trained
    shapes = {name: given.pop(name) for name in _SHAPES if name in given}
    if given:
        raise UsageError(f"{', '.join(given)}: on {kinds.backend()}, let the function compile so")
    model: Any = made
    if not model.compiled:
        raise UsageError(f"{model.name} is not compiled: let the function compile it")
    return train_step(model, size, **shapes)


def ended_at_training(begin: Callable[[], Any]) -> Any:
    """Run ``begin``, and raise :class:`Training` as soon as it trains a Keras model on TensorFlow.

    Keras may be imported meanwhile. TensorFlow does not run on fake tensors: a script that calls
    ``fit()`` would train to its end.
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
    """Make ``fit`` and ``train_on_batch`` raise :class:`Training`, if Keras runs on TensorFlow."""
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


def trace_training(error: BaseException, job: Job, options: Mapping[str, Any]) -> Trace | None:
    """Return the trace of a training that ended a program; None if ``error`` is something else.

    Args:
        error: the exception that ended the program.
        job: its device and card are those of the estimate.
        options: fields of ``TraceRequest``; they override what the training says.
    """
    if not isinstance(error, Training):
        return None
    from tensorlens.planning.tensorflow.tracing import TraceRequest
    from tensorlens.planning.tensorflow.train_step import train_step_trace

    model = error.model
    known: dict[str, Any] = {"batch_size": error.batch or SAMPLES}
    if error.shape is not None:
        try:
            inputs_of(model, 1, None, None)
        except UsageError:
            known["input_shape"] = error.shape
    trace = train_step_trace(
        model, TraceRequest(**{**known, **options, "device": job.device, "card": job.card})
    )
    if error.is_of_program:
        trace.cautions.append(Caution(_ENDED.format(model.name)))
    return trace


def check_is_of_torch(trace: Trace) -> None:
    """Check that a traced program used torch.

    Raises:
        UsageError: it used TensorFlow alone, in a training loop of its own.
    """
    if not trace.log.devices and "tensorflow" in sys.modules:
        raise UsageError(_OWN_LOOP)


def _name_from_one() -> None:
    """Reset the counters of Keras's automatic names (keras/src/utils/naming.py, 3.15).

    An earlier run of the program may have made the same model for another batch.
    """
    state = sys.modules.get("keras.src.backend.common.global_state")
    if state is not None:
        state.set_global_attribute("object_name_uids", None)


TYPES_ARE_GUESSED = (
    "the model does not tell which type its inputs have: they are taken for floats of Keras's "
    "default; input_dtype= says otherwise"
)
"""Caution for models of which :func:`tells_types` is False."""


def inputs_of(model: Any, batch: int, shape: Any, dtype: str | None) -> tuple[Any, list[str]]:
    """Return a model's inputs as a structure of ``KerasTensor``, and their names.

    Args:
        model: a Keras model.
        batch: the first dimension of each.
        shape: shape without the batch, or one for each input, for models that have none.
        dtype: dtype for models that do not declare one; by default ``keras.config.floatx()``.

    Raises:
        UsageError: the model does not know the shapes, and none were given.
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
        # unnamed symbolic tensors
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
    """Return whether a model knows the dtypes of its inputs, not only their shapes."""
    return _symbolic_inputs(model) is not None


def targets_of(model: Any, inputs: Any, loss: Any) -> Any:
    """Return the structure of the targets: like the outputs, but class numbers for sparse losses.

    Args:
        model: called with symbolic tensors.
        inputs: the result of :func:`inputs_of`.
        loss: the loss that it is compiled with; None: there are no targets.
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
    """Return the symbolic inputs of a functional model or a ``Sequential``; None of others."""
    found = getattr(model, "_inputs_struct", None)
    # a symbolic tensor has no truth
    if found is None:
        found = getattr(getattr(model, "_functional", None), "_inputs_struct", None)
    return found


def _shapes_as_built(model: Any, dtype: str) -> Any:
    """Return the inputs that a subclassed model was built for; their dtypes are unknown."""
    import keras

    shapes = getattr(model, "_build_shapes_dict", None)
    if not shapes:
        return None
    structures = [*shapes.values()]

    def symbolic(shape: Any) -> Any:
        if isinstance(shape, tuple):
            return keras.KerasTensor(shape, dtype)
        if isinstance(shape, dict):
            return {key: symbolic(each) for key, each in shape.items()}
        return [symbolic(each) for each in shape]

    return symbolic(structures[0] if len(structures) == 1 else structures)


def train_step(
    model: Any, batch: int, *, input_shape: Any = None, input_dtype: str | None = None
) -> Callable[[], None]:
    """Return a function that trains the model with one batch of zeros, as ``fit`` does.

    Args:
        model: a compiled model; it is built here if needed.
        batch: samples of a step.
        input_shape: shape without the batch, for models that have none.
        input_dtype: dtype for models that do not declare one.

    Raises:
        UsageError: the shapes of the model's inputs are unknown.
    """
    import keras

    def zeros(spec: Any) -> Any:
        return keras.ops.zeros(spec.shape, dtype=spec.dtype)

    input_specs, _ = inputs_of(model, batch, input_shape, input_dtype)
    if not model.built:
        model(input_specs)
    target_specs = targets_of(model, input_specs, model.loss)
    inputs = keras.tree.map_structure(zeros, input_specs)
    targets = None if target_specs is None else keras.tree.map_structure(zeros, target_specs)

    def step() -> None:
        model.train_on_batch(inputs, targets)

    return step
