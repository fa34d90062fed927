"""One train step of a Keras model as a graph: no data, no memory, nothing of the model changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tensorlens.errors import UsageError
from tensorlens.frameworks.tensorflow.estimate.asked import Asked
from tensorlens.frameworks.tensorflow.estimate.loops import unrolled
from tensorlens.frameworks.tensorflow.estimate.nodes import Shape
from tensorlens.frameworks.tensorflow.estimate.shapes import inputs_of, targets_of
from tensorlens.frameworks.tensorflow.estimate.tape import (
    GradientCall,
    forget_gradients,
    held_by_results,
    noting_gradients,
)
from tensorlens.frameworks.tensorflow.estimate.twins import (
    StepGraph,
    build,
    is_built,
    made_anew,
    names_and_seeds_kept,
    twin_of,
    with_policy,
)


@dataclass(frozen=True, slots=True)
class Held:
    """Something that is there before the step: a variable, or what is fed."""

    placeholder: str
    """The operation that stands for it in the graph."""
    name: str
    role: str
    dtype: str
    shape: Shape


@dataclass(slots=True)
class Traced:
    """A step's graph and what it needs to be read."""

    graph: Any
    """A ``FuncGraph``."""
    variables: Sequence[Held]
    feeds: Sequence[Held]
    gradients: Mapping[str, str]
    """Name of an operation to the weight whose gradient it makes."""
    layers: Any
    """The model that was traced."""
    calls: Sequence[GradientCall] = ()
    """Of gradient functions, in their order."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Name of an operation to that of another, whose results its own refer to in Python."""


def trace(model: Any, asked: Asked) -> Traced:
    """Return the graph of one train step.

    Raises:
        UsageError: the shapes of the model's inputs are not known.
    """
    outer = StepGraph()
    make, configuration = _optimizer(model, asked)
    with names_and_seeds_kept():
        with outer.as_default():
            made = model
            if asked.policy is not None and asked.policy != model.dtype_policy.name:
                made = with_policy(model, asked.policy)
            elif not is_built(model):
                made = made_anew(model)
                build(made, inputs_of(made, asked)[0])
            twin = twin_of(made)
            try:
                made_optimizer = make(**configuration)
            except ValueError as error:
                reason = " ".join(str(error).split())[:200]
                raise UsageError(f"optimizer={asked.optimizer!r}: {reason}") from None
            _compile(twin, model, asked, made_optimizer)
            inputs, names = inputs_of(made, asked)
            targets = targets_of(twin, inputs, twin.loss)
            optimizer = twin.optimizer
            gradients: dict[str, str] = {}
            if optimizer is not None:
                optimizer.build(twin.trainable_variables)
                _note_gradients(optimizer, gradients)
        step = tf.function(twin.train_step, autograph=False)
        calls: list[GradientCall] = []
        steps = unrolled(made) if asked.eager else nullcontext()
        with noting_gradients(calls), steps:
            graph = step.get_concrete_function((inputs, targets)).graph
    forget_gradients(graph)
    return Traced(
        graph=graph,
        variables=_variables(graph, twin, made),
        feeds=_feeds(graph, inputs, targets, names),
        gradients=gradients,
        layers=made,
        calls=[call for call in calls if call.graph is graph],
        held=held_by_results(graph),
    )


def _optimizer(model: Any, asked: Asked) -> tuple[Any, Mapping[str, Any]]:
    """Return the class and the configuration of what was asked, else of the model's own."""
    import keras

    optimizer = asked.optimizer
    if optimizer is None and model.compiled:
        optimizer = model.optimizer
    if optimizer is None:
        optimizer = "rmsprop"
    if isinstance(optimizer, str):
        return keras.optimizers.get, {"identifier": optimizer}
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return type(optimizer).from_config, {"config": optimizer.get_config()}


def _compile(twin: Any, model: Any, asked: Asked, optimizer: Any) -> None:
    """Compile the twin with what was asked, else as the model is compiled."""
    loss, metrics = asked.loss, None
    if model.compiled:
        loss = loss if loss is not None else model.loss
        known = getattr(model, "_compile_metrics", None)
        metrics = getattr(known, "_user_metrics", None)
    twin.compile(optimizer=optimizer, loss=loss, metrics=metrics, jit_compile=False)


def _note_gradients(optimizer: Any, found: dict[str, str]) -> None:
    """Let an optimizer of a twin note which operations make the gradients it is given."""
    original = optimizer.apply

    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        weights = trainable_variables or optimizer._trainable_variables
        for gradient, weight in zip(grads, weights, strict=False):
            values = getattr(gradient, "values", gradient)
            if values is not None and hasattr(values, "op"):
                found.setdefault(values.op.name, weight.path)
        return original(grads, trainable_variables)

    optimizer.apply = apply


def _variables(graph: Any, twin: Any, model: Any) -> list[Held]:
    known: dict[int, tuple[str, str, Any]] = {}
    optimizer = twin.optimizer
    trainable = {id(each) for each in model.trainable_variables}
    metrics = [each for metric in twin.metrics for each in metric.variables]
    groups = (
        (() if optimizer is None else optimizer.variables, "optimizer"),
        (metrics, "other"),
        (model.variables, None),
    )
    for variables, role in groups:
        for each in variables:
            what = role or ("parameter" if id(each) in trainable else "buffer")
            known[id(each.value.handle)] = (each.path, what, each)
    found, seen = [], set()
    for outer, inner in graph.captures:
        entry = known.get(id(outer))
        if entry is not None:
            path, role, variable = entry
            seen.add(id(outer))
            found.append(_held(inner.op.name, path, role, variable))
    for handle, (path, role, variable) in known.items():
        if handle not in seen:
            found.append(_held("", path, role, variable))
    return found


def _held(placeholder: str, path: str, role: str, variable: Any) -> Held:
    dtype = tf.as_dtype(variable.dtype).name
    return Held(placeholder, path, role, dtype, tuple(int(size) for size in variable.shape))


def _feeds(graph: Any, inputs: Any, targets: Any, names: Any) -> list[Held]:
    given = [*tf.nest.flatten(inputs), *tf.nest.flatten(targets)]
    labels = [*names, *(f"target{number or ''}" for number in range(len(given)))]
    found = []
    for placeholder, spec, label in zip(graph.inputs, given, labels, strict=False):
        shape = tuple(int(size) for size in spec.shape)
        found.append(Held(placeholder.op.name, label, "input", spec.dtype.name, shape))
    return found
