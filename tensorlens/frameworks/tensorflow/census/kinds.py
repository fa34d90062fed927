"""The classes that a census looks for: only those whose modules the program has imported."""

from __future__ import annotations

import sys
from typing import Any

from tensorlens.frameworks.heap.fallback import dict_of


class Never:
    """What no object is an instance of: stands for a class that was never imported."""


def imported(module: str, name: str) -> type:
    """Return a class by its place, or :class:`Never` where its module has not been imported."""
    content = getattr(sys.modules.get(module), "__dict__", {})
    kind = content.get(name)
    return kind if isinstance(kind, type) else Never


def eager_tensor() -> type:
    """Return the class of tensors that have memory."""
    return imported("tensorflow.python.framework.ops", "EagerTensor")


def variable() -> type:
    """Return the class of variables on one device."""
    return imported("tensorflow.python.ops.resource_variable_ops", "BaseResourceVariable")


def distributed_variable() -> type:
    """Return the class of variables with a replica on each of several devices."""
    return imported("tensorflow.python.distribute.values", "DistributedVariable")


def keras_variable() -> type:
    """Return Keras's own class of variables, of its TensorFlow backend."""
    return imported("keras.src.backend.tensorflow.core", "Variable")


def layer() -> type:
    """Return the class of Keras's layers and models."""
    return imported("keras.src.layers.layer", "Layer")


def optimizer() -> type:
    """Return the class of Keras's optimizers."""
    return imported("keras.src.optimizers.base_optimizer", "BaseOptimizer")


def legacy_optimizer() -> type:
    """Return the class of TensorFlow's own optimizers, of ``tf.compat.v1.train``."""
    return imported("tensorflow.python.training.optimizer", "Optimizer")


def seed_generator() -> type:
    """Return the class of what holds the state of Keras's random numbers."""
    return imported("keras.src.random.seed_generator", "SeedGenerator")


def metric() -> type:
    """Return the class of Keras's metrics."""
    return imported("keras.src.metrics.metric", "Metric")


def tape() -> type:
    """Return the class of what a ``GradientTape`` records on."""
    return imported("tensorflow.python.eager.tape", "Tape")


def dataset() -> type:
    """Return the class of tf.data's datasets."""
    return imported("tensorflow.python.data.ops.dataset_ops", "DatasetV2")


def iterator() -> type:
    """Return the class of tf.data's iterators."""
    return imported("tensorflow.python.data.ops.iterator_ops", "OwnedIterator")


def module() -> type:
    """Return the class ``tf.Module``."""
    return imported("tensorflow.python.module.module", "Module")


def func_graph() -> type:
    """Return the class of the graphs of functions."""
    return imported("tensorflow.python.framework.func_graph", "FuncGraph")


def indexed_slices() -> type:
    """Return the class of sparse gradients."""
    return imported("tensorflow.python.framework.indexed_slices", "IndexedSlices")


def content_of(item: Any) -> dict[str, Any]:
    """Return an object's own attributes, without asking the object."""
    content = dict_of(item)
    if not issubclass(type(content), dict):
        return {}
    return {key: value for key, value in dict.items(content) if type(key) is str}


def items_of(value: Any) -> list[Any]:
    """Return the items of a list or tuple, of Keras's and TensorFlow's tracked ones too."""
    kind = type(value)
    wrapped = imported("tensorflow.python.trackable.data_structures", "ListWrapper")
    if issubclass(kind, wrapped):
        # a list that TensorFlow tracks keeps its items in another list
        inner: Any = content_of(value).get("_storage")
        if issubclass(type(inner), list):
            return list(list.__iter__(inner))
    for plain in (list, tuple):
        if issubclass(kind, plain):
            return list(plain.__iter__(value))
    return []


def class_name(item: Any) -> str:
    """Return the name of an object's class, without running code of its metaclass."""
    try:
        return str(type.__dict__["__name__"].__get__(type(item)))
    except Exception:
        return "object"
