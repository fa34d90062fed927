"""A Keras model that can be compiled anew without the user's one noticing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

_TRACKED = "_tracker"
_DEPENDENCIES = "_self_unconditional_"
"""How the names of what TensorFlow notes on a model for its checkpoints begin."""


class StepGraph(tf.Graph):  # type: ignore[misc]
    """A graph in which variables are made without memory.

    Outside of a function that is being traced, TensorFlow makes variables where the outermost graph
    is. So what an optimizer adds here are handles and initializers that never run. Variables of the
    model were made elsewhere, so nothing can be placed beside them.
    """

    @contextmanager
    def colocate_with(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Place it anywhere."""
        yield

    @contextmanager
    def _colocate_with_for_gradient(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        yield


def twin_of(model: Any) -> Any:
    """Return a model of the same class with the same layers and weights.

    What is set on it, as ``compile`` does, is not set on the model.
    """
    twin = object.__new__(type(model))
    attributes = dict(model.__dict__)
    if _TRACKED in attributes:
        attributes[_TRACKED] = _own_tracker(attributes, attributes[_TRACKED])
    for name, value in attributes.items():
        if name.startswith(_DEPENDENCIES):
            # or what is set on the twin would live as long as the model
            value = copy.copy(value)
        object.__setattr__(twin, name, value)
    return twin


def _own_tracker(attributes: dict[str, Any], tracker: Any) -> Any:
    """Return a tracker whose lists are the twin's own, and let its attributes be these lists."""
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


def with_policy(model: Any, policy: str) -> Any:
    """Return a model made from this one's configuration, with another policy of dtypes.

    Called within a :class:`StepGraph`, it has no weights in memory.
    """
    import keras

    configuration = _with_dtype(model.get_config(), policy)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return type(model).from_config(configuration)
    finally:
        keras.config.set_dtype_policy(before)


def _with_dtype(value: Any, policy: str) -> Any:
    if isinstance(value, dict):
        if value.get("class_name") in ("DTypePolicy", "Policy") and "config" in value:
            return {**value, "config": {**value["config"], "name": policy}}
        return {key: _with_dtype(each, policy) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_dtype(each, policy) for each in value]
    if isinstance(value, tuple):
        return tuple(_with_dtype(each, policy) for each in value)
    return value
