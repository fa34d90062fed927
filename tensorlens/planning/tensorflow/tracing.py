"""One train step of a Keras model as a graph: no data, no memory, nothing of the model changed."""

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
from tensorlens.guards import one_line
from tensorlens.planning.card import Card
from tensorlens.planning.tensorflow.clone_model import (
    StepGraph,
    clone_of,
    is_built,
    names_and_seeds_kept,
    rebuilt_model,
)
from tensorlens.planning.tensorflow.keras_training import inputs_of, targets_of

_GRADIENT = "_gradient_op_type"
_LOGITS = "_keras_logits"
"""Attribute by which Keras has the result of a sigmoid or a softmax refer to what it was computed
from, for losses (``backend/tensorflow/nn.py`` of Keras 3)."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One question, checked."""

    batch: int
    optimizer: Any = None
    """A name or a Keras optimizer; None: the one that the model is compiled with."""
    loss: Any = None
    policy: str | None = None
    """``mixed_float16``; None: what the model has."""
    eager: bool = False
    """Whether the step is run operation by operation (``run_eagerly=True``)."""
    device: str = "cuda"
    """``cuda`` or ``cpu``."""
    card: Card | None = None
    input_shape: Any = None
    """Shape of the inputs without the batch, where the model does not know it."""
    input_dtype: str | None = None
    """Of inputs whose type the model does not tell; None: Keras's default for floats."""


@dataclass(frozen=True, slots=True)
class StepInput:
    """Something that is there before the step: a variable, or what is fed."""

    placeholder: str
    """The operation that stands for it in the graph."""
    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(slots=True)
class TracedStep:
    """A step's graph and what it needs to be read."""

    function: Any
    """A ``ConcreteFunction``."""
    variables: Sequence[StepInput]
    feeds: Sequence[StepInput]
    gradients: Mapping[str, str]
    """Name of an operation to the weight whose gradient it makes."""
    layers: Any
    """The model that was traced."""
    until: Mapping[str, int] = field(default_factory=dict)
    """Name of an operation to the place of that until whose end a tape keeps its results."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Name of an operation to that of another, whose results its own refer to in Python."""

    @property
    def graph(self) -> Any:
        """The ``FuncGraph``."""
        return self.function.graph


def trace(model: Any, asked: TraceRequest) -> TracedStep:
    """Return the graph of one train step.

    Raises:
        UsageError: the shapes of the model's inputs are not known.
    """
    outer = StepGraph()
    make, configuration = _optimizer(model, asked)
    besides = _optimizers_besides(model, asked)
    with names_and_seeds_kept():
        with outer.as_default():
            made = model
            if asked.policy is not None and asked.policy != model.dtype_policy.name:
                made = rebuilt_model(model, asked.policy)
            elif not is_built(model):
                made = rebuilt_model(model)
                made(inputs_of(made, asked.batch, asked.input_shape, asked.input_dtype)[0])
            twin = clone_of(made)
            try:
                made_optimizer = make(**configuration)
            except ValueError as error:
                raise UsageError(f"optimizer={asked.optimizer!r}: {one_line(error, 200)}") from None
            _compile(twin, model, asked, made_optimizer)
            for name, (kind, settings) in besides.items():
                object.__setattr__(twin, name, kind.from_config(settings))
            gradients: dict[str, str] = {}
            for optimizer in _optimizers(twin):
                _note_gradients(optimizer, gradients, outer)
            inputs, names = inputs_of(made, asked.batch, asked.input_shape, asked.input_dtype)
            batches = list(_batches(twin, inputs))
        with unrolled(made) if asked.eager else nullcontext():
            batch, function, until = _concrete(twin, batches)
    graph = function.graph
    _forget_gradients(graph)
    return TracedStep(
        function=function,
        variables=_variables(graph, twin, made),
        feeds=_feeds(graph, batch, names),
        gradients=gradients,
        layers=made,
        until=until.get(graph, {}),
        held=_held_by_results(graph),
    )


def _batches(twin: Any, inputs: Any) -> Iterator[Any]:
    """Give what ``fit()`` may hand to a train step: the likeliest first.

    A step of one's own, of a model that is compiled without a loss, may take inputs alone or
    targets too; these are then taken to be like the outputs.
    """
    is_own = not kinds.is_inherited(twin, "train_step")
    if twin.loss is not None:
        yield inputs, targets_of(twin, inputs, twin.loss)
        return
    yield (inputs,) if isinstance(inputs, (tuple, list)) else inputs
    if is_own and not kinds.is_inherited(twin, "call"):
        yield inputs, targets_of(twin, inputs, "mse")


def _concrete(twin: Any, batches: Sequence[Any]) -> tuple[Any, Any, Mapping[Any, dict[str, int]]]:
    """Return the batch that the train step takes, the function made for it, and what tapes keep.

    Raises:
        UsageError: it takes none of them, or fails with all.
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
    """Return the optimizer that a twin is compiled with, and those that its class has besides."""
    found = [value for value in twin.__dict__.values() if isinstance(value, keras.Optimizer)]
    return list({id(each): each for each in found}.values())


def _optimizer(model: Any, asked: TraceRequest) -> tuple[Any, Mapping[str, Any]]:
    """Return the class and the configuration of what was asked, else of the model's own."""
    optimizer = asked.optimizer
    if optimizer is None and model.compiled:
        optimizer = model.optimizer
    if optimizer is None:
        optimizer = "rmsprop"
    if isinstance(optimizer, str):
        return keras.optimizers.get, {"identifier": optimizer}
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return type(optimizer).from_config, {"config": optimizer.get_config()}


def _optimizers_besides(model: Any, asked: TraceRequest) -> Mapping[str, tuple[Any, Any]]:
    """Return the class and the configuration of optimizers that a ``compile()`` of its own took.

    Raises:
        UsageError: an optimizer was asked for, and the class has several of its own.
    """
    found = {
        name: value
        for name, value in model.__dict__.items()
        if isinstance(value, keras.Optimizer) and value is not getattr(model, "optimizer", None)
    }
    if found and asked.optimizer is not None:
        raise UsageError(
            f"{type(model).__name__} has {' and '.join(found)}: compile it with them, and leave "
            "out optimizer="
        )
    return {name: (type(value), value.get_config()) for name, value in found.items()}


def _compile(twin: Any, model: Any, asked: TraceRequest, optimizer: Any) -> None:
    """Compile the twin with what was asked, else as the model is compiled."""
    loss, metrics = asked.loss, None
    if model.compiled:
        loss = loss if loss is not None else model.loss
        known = getattr(model, "_compile_metrics", None)
        metrics = getattr(known, "_user_metrics", None)
    keras.Model.compile(twin, optimizer=optimizer, loss=loss, metrics=metrics, jit_compile=False)


def _note_gradients(optimizer: Any, found: dict[str, str], outer: StepGraph) -> None:
    """Let an optimizer of a twin note which operations make the gradients it is given.

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
    """Return all variables: those that the step reads first, as it captured them."""
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
    """Let recurrent layers of a model write out all their steps while it is entered."""
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
    """Give, by graph, the operations that tapes keep results of, and until which one's end.

    A tape keeps of each operation the inputs and outputs that its gradient function reads, until
    backward has run that function (``c/eager/tape.h`` of TensorFlow 2.21). They are seen as the
    tape hands them, and gradients, to the gradient functions of a step that is being traced.
    """
    found: dict[Any, dict[str, int]] = {}

    def note(begin: int, arguments: tuple[Any, ...]) -> None:
        graph = tf.compat.v1.get_default_graph()
        until = found.setdefault(graph, {})
        for each in chain.from_iterable(group or () for group in arguments[3:6]):
            if getattr(each, "graph", None) is graph:
                # how many operations the graph has now
                until[each.op.name] = each.graph.version - 1

    end = follow_gradient_functions(note)
    try:
        yield found
    finally:
        end()


def _forget_gradients(graph: Any) -> None:
    """Take what a graph's custom gradients left in TensorFlow's registry out of it again.

    ``tf.custom_gradient`` registers one for each call that is traced, for ever, and it holds the
    graph and all the weights that this captured.
    """
    definition = graph.as_graph_def()
    functions = (each.node_def for each in definition.library.function)
    for node in chain(definition.node, *functions):
        name = node.attr[_GRADIENT].s.decode() if _GRADIENT in node.attr else ""
        if name.startswith("CustomGradient-"):
            ops.gradient_registry._registry.pop(name, None)


def _held_by_results(graph: Any) -> Mapping[str, str]:
    """Return operations whose results Python has refer to those of another one, by name."""
    found = {}
    for operation in graph.get_operations():
        for each in operation.outputs:
            held: Any = getattr(each, _LOGITS, None)
            if getattr(held, "graph", None) is graph:
                found[operation.name] = held.op.name
    return found
