"""Clones of Keras models, which can be compiled without a change of the user's model."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds

_TRACKER = "_tracker"
_DEPENDENCIES = "_self_unconditional_"
"""Prefix of the attributes in which TensorFlow keeps what checkpoints of a model save."""


class StepGraph(tf.Graph):  # type: ignore[misc]
    """A graph in which variables are made without memory.

    Outside of a traced function TensorFlow makes variables in the outermost graph, so an optimizer
    adds handles and initializers here that never run. The model's variables belong to another
    graph; colocation with them is ignored.
    """

    @contextmanager
    def colocate_with(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Ignore the placement."""
        yield

    @contextmanager
    def _colocate_with_for_gradient(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        yield


def clone_of(model: Any) -> Any:
    """Return a model of the same class with the same layers and weights.

    Attributes set on the clone, as by ``compile``, are not set on the model.
    """
    twin = object.__new__(type(model))
    attributes = dict(model.__dict__)
    if _TRACKER in attributes:
        attributes[_TRACKER] = _own_tracker(attributes, attributes[_TRACKER])
    for name, value in attributes.items():
        if name.startswith(_DEPENDENCIES):
            # shared, it would keep what is set on the twin as long as the model lives
            value = copy.copy(value)
        object.__setattr__(twin, name, value)
    return twin


def with_dtype(configuration: Any, policy: str) -> Any:
    """Return the configuration with each layer's dtype policy replaced, as by ``mixed_float16``."""
    if isinstance(configuration, dict):
        if configuration.get("class_name") in ("DTypePolicy", "Policy"):
            inner = configuration.get("config")
            if isinstance(inner, dict):
                return {**configuration, "config": {**inner, "name": policy}}
        return {key: with_dtype(each, policy) for key, each in configuration.items()}
    if isinstance(configuration, (list, tuple)):
        items = [with_dtype(each, policy) for each in configuration]
        return tuple(items) if isinstance(configuration, tuple) else items
    return configuration


def _own_tracker(attributes: dict[str, Any], tracker: Any) -> Any:
    """Copy a tracker and its lists, and put the copied lists into the attributes."""
    own = copy.copy(tracker)
    own.stored_ids = {name: set(ids) for name, ids in tracker.stored_ids.items()}
    own.config = {}
    for name, (decider, store) in tracker.config.items():
        mine = list(store)
        own.config[name] = (decider, mine)
        for attribute, value in attributes.items():
            if value is store:
                attributes[attribute] = mine
    return own


def is_built(model: Any) -> bool:
    """Return whether all weights exist; tracing would make missing ones inside its graph."""
    import keras

    inner = model._flatten_layers(include_self=False)
    # a subclass is built by its first call, even if only its layers have weights
    is_whole = bool(model.built) or (bool(inner) and kinds.is_inherited(model, "build"))
    # a layer without build() makes no weights and may never be called, as in TextVectorization
    return is_whole and all(
        layer.built or type(layer).build is keras.Layer.build for layer in inner
    )


def rebuilt_model(model: Any, policy: str | None = None) -> Any:
    """Return a new model of the same configuration whose weights are not made yet.

    Within a :class:`StepGraph` its weights take no memory.

    Args:
        model: a Keras model.
        policy: another dtype policy.

    Raises:
        UsageError: it has weights and cannot be made from its configuration.
    """
    import keras

    before = keras.config.dtype_policy()
    try:
        if policy is None and not model.variables:
            return copy.deepcopy(model)
        configuration = model.get_config()
        if policy is not None:
            configuration = with_dtype(configuration, policy)
            keras.config.set_dtype_policy(policy)
        return type(model).from_config(configuration)
    except Exception as error:
        advice = "call it once with a batch, then estimate" if policy is None else "make it with it"
        what = "its layers without weights" if policy is None else f"policy={policy}"
        raise UsageError(
            f"{type(model).__name__} cannot be made anew from its configuration, for {what} "
            f"({type(error).__name__}): {advice}"
        ) from None
    finally:
        keras.config.set_dtype_policy(before)


@contextmanager
def names_and_seeds_kept() -> Iterator[None]:
    """Restore the counters of Keras's automatic names and the default random states at the end."""
    from keras.src.backend.common import global_state

    numbers = global_state.get_global_attribute("object_name_uids")
    before = None if numbers is None else dict(numbers)
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        now = global_state.get_global_attribute("object_name_uids")
        if now is not None:
            now.clear()
            now.update(before or {})
