"""Traces one train step of a Keras model as a graph, without data and without changing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework import ops

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.tensorflow.hooks import follow_gradient_functions
from tensorlens.frameworks.tensorflow.sizes import nbytes
from tensorlens.guards import one_line
from tensorlens.planning.card import Card
from tensorlens.planning.tensorflow.clone_model import (
    StepGraph,
    clone_of,
    is_built,
    names_and_seeds_kept,
    rebuilt_model,
)
from tensorlens.planning.tensorflow.keras_training import SAMPLES, inputs_of, targets_of
from tensorlens.records.logs.events import Label

_GRADIENT = "_gradient_op_type"
_LOGITS = "_keras_logits"
"""Attribute in which the result of a sigmoid or softmax keeps its logits, for losses
(``backend/tensorflow/nn.py`` of Keras 3)."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A checked request for the trace of a train step."""

    batch_size: int = SAMPLES
    optimizer: Any = None
    """A name or a Keras optimizer; None: that of ``compile``."""
    loss: Any = None
    policy: str | None = None
    """A dtype policy, such as ``mixed_float16``; None: the model's own."""
    run_eagerly: bool | None = None
    """Whether the step runs operation by operation; None: that of ``compile``."""
    device: str = "cuda"
    """``cuda`` or ``cpu``."""
    card: Card | None = None
    input_shape: Any = None
    """Shape of the inputs without the batch, for models that do not know it."""
    input_dtype: str | None = None
    """Dtype of inputs of models that declare none; None: Keras's default for floats."""


@dataclass(frozen=True, slots=True)
class StepInput:
    """A tensor that exists before the step: a variable or a batch."""

    placeholder: str
    """Name of the operation that stands for it in the graph; empty if the step does not read it."""
    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return nbytes(self.shape, self.dtype)

    @property
    def label(self) -> Label:
        """Label of its memory."""
        return Label(self.name, self.role, self.dtype, self.shape)


@dataclass(slots=True)
class TracedStep:
    """The graph of a step, with its inputs and gradients."""

    function: Any
    """A ``ConcreteFunction``."""
    variables: Sequence[StepInput]
    feeds: Sequence[StepInput]
    gradients: Mapping[str, str]
    """Operation name to the path of the weight whose gradient it makes."""
    model: Any
    """The model that was traced."""
    until: Mapping[str, int] = field(default_factory=dict)
    """Operation name to the index of the operation at whose end the tape drops its results."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Operation name to the operation whose results its own results keep alive in Python."""

    @property
    def graph(self) -> Any:
        """The ``FuncGraph``."""
        return self.function.graph


def trace_graph(model: Any, request: TraceRequest) -> TracedStep:
    """Return the graph of one train step.

    Raises:
        UsageError: the shapes of the model's inputs are not known.
    """
    outer = StepGraph()
    make, configuration = _optimizer(model, request)
    besides = _optimizers_besides(model, request)
    with names_and_seeds_kept():
        with outer.as_default():
            made = model
            if request.policy is not None and request.policy != model.dtype_policy.name:
                made = rebuilt_model(model, request.policy)
            elif not is_built(model):
                made = rebuilt_model(model)
                made(
                    inputs_of(made, request.batch_size, request.input_shape, request.input_dtype)[0]
                )
            twin = clone_of(made)
            try:
                made_optimizer = make(**configuration)
            except ValueError as error:
                raise UsageError(
                    f"optimizer={request.optimizer!r}: {one_line(error, 200)}"
                ) from None
            _compile(twin, model, request, made_optimizer)
            for name, (kind, settings) in besides.items():
                object.__setattr__(twin, name, kind.from_config(settings))
            gradients: dict[str, str] = {}
            for optimizer in _optimizers(twin):
                _note_gradients(optimizer, gradients, outer)
            inputs, names = inputs_of(
                made, request.batch_size, request.input_shape, request.input_dtype
            )
            batches = _batches(twin, inputs)
        with unrolled(made) if request.run_eagerly else nullcontext():
            batch, function, until = _concrete(twin, batches)
    graph = function.graph
    _forget_gradients(graph)
    return TracedStep(
        function=function,
        variables=_variables(graph, twin, made),
        feeds=_feeds(graph, batch, names),
        gradients=gradients,
        model=made,
        until=until.get(graph, {}),
        held=_held_by_results(graph),
    )


def _batches(twin: Any, inputs: Any) -> list[Any]:
    """Return batches as ``fit()`` may pass them to a train step, the likeliest first.

    A custom step of a model without a loss may take inputs alone or targets too; targets are then
    assumed to be like the outputs.
    """
    if twin.loss is not None:
        return [(inputs, targets_of(twin, inputs, twin.loss))]
    found = [(inputs,) if isinstance(inputs, (tuple, list)) else inputs]
    if not kinds.is_inherited(twin, "train_step") and not kinds.is_inherited(twin, "call"):
        found.append((inputs, targets_of(twin, inputs, "mse")))
    return found


def _concrete(twin: Any, batches: Sequence[Any]) -> tuple[Any, Any, Mapping[Any, dict[str, int]]]:
    """Return the first batch that the train step takes, its concrete function and tape lifetimes.

    Raises:
        UsageError: the step fails with all of them.
    """
    first: Exception | None = None
    for symbolic in batches:
        batch = tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape, each.dtype), symbolic)
        step = tf.function(twin.train_step, autograph=False)
        try:
            with _kept_by_tapes() as until:
                return batch, step.get_concrete_function(batch), until
        except Exception as error:
            first = first or error
    assert first is not None
    if kinds.is_inherited(twin, "train_step"):
        raise first
    texts = [str(tuple(each.shape)) for each in tf.nest.flatten(batches[0])]
    raise UsageError(
        f"{type(twin).__name__}.train_step() fails with a batch of the shape "
        f"{', '.join(texts)}: {type(first).__name__}: {one_line(first, 200)}"
    ) from first


def _optimizers(twin: Any) -> list[Any]:
    """Return all optimizers that a twin has as attributes."""
    found = [value for value in twin.__dict__.values() if isinstance(value, keras.Optimizer)]
    return list({id(each): each for each in found}.values())


def _optimizer(model: Any, request: TraceRequest) -> tuple[Any, Mapping[str, Any]]:
    """Return a function that makes the optimizer, requested or the model's, and its arguments."""
    optimizer = request.optimizer
    if optimizer is None and model.compiled:
        optimizer = model.optimizer
    if optimizer is None:
        optimizer = "rmsprop"
    if isinstance(optimizer, str):
        return keras.optimizers.get, {"identifier": optimizer}
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return type(optimizer).from_config, {"config": optimizer.get_config()}


def _optimizers_besides(model: Any, request: TraceRequest) -> Mapping[str, tuple[Any, Any]]:
    """Return further optimizers of a model: attribute to class and configuration.

    Raises:
        UsageError: the model has some, and an optimizer was requested.
    """
    found = {
        name: value
        for name, value in model.__dict__.items()
        if isinstance(value, keras.Optimizer) and value is not getattr(model, "optimizer", None)
    }
    if found and request.optimizer is not None:
        raise UsageError(
            f"{type(model).__name__} has {' and '.join(found)}: compile it with them, and leave "
            "out optimizer="
        )
    return {name: (type(value), value.get_config()) for name, value in found.items()}


def _compile(twin: Any, model: Any, request: TraceRequest, optimizer: Any) -> None:
    """Compile the twin as requested, otherwise as the model is compiled."""
    loss, metrics = request.loss, None
    if model.compiled:
        loss = loss if loss is not None else model.loss
        known = getattr(model, "_compile_metrics", None)
        metrics = getattr(known, "_user_metrics", None)
    keras.Model.compile(twin, optimizer=optimizer, loss=loss, metrics=metrics, jit_compile=False)


def _note_gradients(optimizer: Any, found: dict[str, str], outer: StepGraph) -> None:
    """Wrap an optimizer's ``apply`` to note which operations make the gradients.

    Its slots are made in the outer graph, where they take no memory.
    """
    original = optimizer.apply

    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not optimizer.built:
                with tf.init_scope(), outer.as_default():
                    optimizer.build(trainable_variables)
        weights = trainable_variables or optimizer._trainable_variables
        for gradient, weight in zip(grads, weights, strict=False):
            values = getattr(gradient, "values", gradient)
            if values is not None and hasattr(values, "op"):
                found.setdefault(values.op.name, weight.path)
        return original(grads, trainable_variables)

    optimizer.apply = apply


def _variables(graph: Any, twin: Any, model: Any) -> list[StepInput]:
    """Return all variables; first those that the step reads, in the order of its captures."""
    trainable = {id(each) for each in model.trainable_variables}
    optimizers = [each for one in _optimizers(twin) for each in one.variables]
    metrics = [each for metric in twin.metrics for each in metric.variables]
    roles = [
        *(("optimizer", each) for each in optimizers),
        *(("other", each) for each in metrics),
        *(("parameter" if id(each) in trainable else "buffer", each) for each in model.variables),
    ]
    known = {id(variable.value.handle): (role, variable) for role, variable in roles}
    captured = {id(outer): inner.op.name for outer, inner in graph.captures if id(outer) in known}
    found = []
    for handle in dict.fromkeys([*captured, *known]):
        role, variable = known[handle]
        dtype, shape = tf.as_dtype(variable.dtype).name, tuple(map(int, variable.shape))
        found.append(StepInput(captured.get(handle, ""), variable.path, role, dtype, shape))
    return found


def _feeds(graph: Any, batch: Any, names: Any) -> list[StepInput]:
    given = tf.nest.flatten(batch)
    labels = [*names, *(f"target{number or ''}" for number in range(len(given)))]
    found = []
    for placeholder, spec, label in zip(graph.inputs, given, labels, strict=False):
        shape = tuple(int(size) for size in spec.shape)
        found.append(StepInput(placeholder.op.name, label, "input", spec.dtype.name, shape))
    return found


@contextmanager
def unrolled(model: Any) -> Iterator[None]:
    """Unroll the recurrent layers of a model meanwhile."""
    rolled = [each for each in model._flatten_layers() if getattr(each, "unroll", None) is False]
    for each in rolled:
        each.unroll = True
    try:
        yield
    finally:
        for each in rolled:
            each.unroll = False


@contextmanager
def _kept_by_tapes() -> Iterator[dict[Any, dict[str, int]]]:
    """Yield a dict that fills meanwhile: graph, operation, index at which tapes drop its results.

    A tape keeps the inputs and outputs that a gradient function reads until backward has run that
    function (``c/eager/tape.h`` of TensorFlow 2.21). The function gets them as arguments.
    """
    found: dict[Any, dict[str, int]] = {}

    def note(begin: int, arguments: tuple[Any, ...]) -> None:
        graph = tf.compat.v1.get_default_graph()
        until = found.setdefault(graph, {})
        for each in chain.from_iterable(group or () for group in arguments[3:6]):
            if getattr(each, "graph", None) is graph:
                # the graph's latest operation
                until[each.op.name] = each.graph.version - 1

    end = follow_gradient_functions(note)
    try:
        yield found
    finally:
        end()


def _forget_gradients(graph: Any) -> None:
    """Remove a graph's custom gradients from TensorFlow's registry.

    ``tf.custom_gradient`` registers one for each traced call and never removes it; it keeps the
    graph and all captured weights alive.
    """
    definition = graph.as_graph_def()
    functions = (each.node_def for each in definition.library.function)
    for node in chain(definition.node, *functions):
        name = node.attr[_GRADIENT].s.decode() if _GRADIENT in node.attr else ""
        if name.startswith("CustomGradient-"):
            ops.gradient_registry._registry.pop(name, None)


def _held_by_results(graph: Any) -> Mapping[str, str]:
    """Map an operation to the one whose results its own results keep alive in Python."""
    found = {}
    for operation in graph.get_operations():
        for each in operation.outputs:
            held: Any = getattr(each, _LOGITS, None)
            if getattr(held, "graph", None) is graph:
                found[operation.name] = held.op.name
    return found
