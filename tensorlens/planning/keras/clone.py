"""A Keras model on its way to another process, where it is made anew without its weights."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.guards import reason
from tensorlens.planning.keras.shapes import train_step


def with_dtype(configuration: Any, policy: str) -> Any:
    """Return a configuration in which each layer has this policy, ``"mixed_float16"`` say."""
    if isinstance(configuration, dict):
        if configuration.get("class_name") in ("DTypePolicy", "Policy"):
            inner = configuration.get("config")
            if isinstance(inner, dict):
                return {**configuration, "config": {**inner, "name": policy}}
        return {key: with_dtype(each, policy) for key, each in configuration.items()}
    if isinstance(configuration, list):
        return [with_dtype(each, policy) for each in configuration]
    if isinstance(configuration, tuple):
        return tuple(with_dtype(each, policy) for each in configuration)
    return configuration


_KNOWN = ("keras", "builtins", "numpy")
"""Packages whose classes and functions a process finds by itself."""

_MANY = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Description of a model, compiled, and of one batch for it."""

    kind: str
    model: Mapping[str, Any]
    """As Keras serializes it, without ``compile_config``."""
    compiled: Mapping[str, Any]
    """Arguments of ``compile``, serialized."""
    own: Mapping[str, Any]
    """Classes and functions that are not Keras's, by the names they are serialized under."""
    batch: int
    input_shape: Any
    input_dtype: str | None
    floatx: str
    policy: str
    """Of what is made without one of its own."""


def describe(
    model: Any,
    batch: int,
    *,
    optimizer: Any = None,
    loss: Any = None,
    policy: str | None = None,
    run_eagerly: bool | None = None,
    input_shape: Any = None,
    input_dtype: str | None = None,
) -> ModelDescription:
    """Return what makes a model like this one; the model stays as it is.

    Args:
        model: a Keras model.
        batch: samples of a step.
        optimizer: in place of what it is compiled with, as the following are.
        loss: None: as compiled.
        policy: of dtypes, for all layers.
        run_eagerly: None: as compiled.
        input_shape: without the batch, where the model has none.
        input_dtype: of inputs whose type the model does not tell.

    Raises:
        UsageError: it has no configuration to be made from.
    """
    import keras

    serialize = keras.saving.serialize_keras_object
    given = {"optimizer": optimizer, "loss": loss, "run_eagerly": run_eagerly}
    given = {name: each for name, each in given.items() if each is not None}
    try:
        with _without_tensorflow():
            made = {key: each for key, each in serialize(model).items() if key != "compile_config"}
            made["config"] = _as_it_takes(type(model), made["config"])
            compiled = {**model.get_compile_config(), **serialize(given)}
    except Exception as error:
        raise _cannot(model, error) from None
    if policy is not None:
        made = with_dtype(made, policy)
    return ModelDescription(
        kind=type(model).__name__,
        model=made,
        compiled=compiled,
        own=_own(model, given, _names_in([made, compiled])),
        batch=batch,
        input_shape=input_shape,
        input_dtype=input_dtype,
        floatx=keras.config.floatx(),
        policy=policy or keras.config.dtype_policy().name,
    )


def make_step(described: ModelDescription) -> Callable[[], None]:
    """Make the model and one batch, and return what runs a train step.

    On Keras's torch backend, where ``train_on_batch`` is what ``fit`` does for each batch.

    Raises:
        UsageError: the model cannot be made from its configuration, or its inputs have no shape.
    """
    import keras

    keras.config.set_floatx(described.floatx)
    keras.config.set_dtype_policy(described.policy)
    deserialize = keras.saving.deserialize_keras_object
    try:
        with _without_tensorflow(), keras.saving.custom_object_scope(dict(described.own)):
            model = deserialize(described.model, safe_mode=False)
            compiled = deserialize(described.compiled, safe_mode=False)
    except Exception as error:
        raise _cannot(described, error) from None
    model.compile(**compiled)
    return train_step(
        model,
        described.batch,
        input_shape=described.input_shape,
        input_dtype=described.input_dtype,
    )


@contextmanager
def _without_tensorflow() -> Iterator[None]:
    """Keep Keras from importing TensorFlow only to see that nothing serialized is of its types."""
    library: Any = sys.modules.get("keras.src.saving.serialization_lib")
    if library is None or "tensorflow" in sys.modules:
        yield
        return
    lazy, library.tf = library.tf, SimpleNamespace(available=False)
    try:
        yield
    finally:
        library.tf = lazy


def _cannot(thing: Any, error: Exception) -> UsageError:
    name = thing.kind if isinstance(thing, ModelDescription) else type(thing).__name__
    return UsageError(
        f"{name} cannot be made anew from its configuration ({reason(error)[:200]}): "
        "give a function that builds model, optimizer and data and returns step()"
    )


def _as_it_takes(kind: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without what the class takes no argument for.

    Keras adds ``trainable`` and ``dtype`` to the arguments of a model of one's own.
    """
    import keras

    names = inspect.signature(kind).parameters
    takes_all = any(each.kind in _MANY for each in names.values())
    if takes_all or _function(kind.from_config) is not _function(keras.Model.from_config):
        return dict(config)
    return {name: each for name, each in config.items() if name in names}


def _function(method: Any) -> Any:
    return getattr(method, "__func__", method)


def _own(model: Any, given: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    """Return the classes and functions of these names that do not come with Keras."""
    import keras

    found = {}
    compiled = getattr(getattr(model, "_compile_config", None), "config", {})
    layers = [model, *model._flatten_layers()]
    held = [each for layer in layers for each in vars(layer).values() if inspect.isfunction(each)]
    for each in [*layers, *held, *keras.tree.flatten([compiled, given])]:
        thing = each if inspect.isfunction(each) or inspect.isclass(each) else type(each)
        if thing.__name__ in names and thing.__module__.partition(".")[0] not in _KNOWN:
            found[thing.__name__] = found[keras.saving.get_registered_name(thing)] = thing
    return found


def _names_in(serialized: Any) -> set[str]:
    """Return what classes and functions are called in what Keras serialized."""
    if isinstance(serialized, (list, tuple)):
        return {name for each in serialized for name in _names_in(each)}
    if not isinstance(serialized, Mapping):
        return set()
    names = {name for each in serialized.values() for name in _names_in(each)}
    kind, config = serialized.get("class_name"), serialized.get("config")
    names |= {each for each in (kind, config) if isinstance(each, str)}
    return names
