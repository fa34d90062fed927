"""The classes that a census looks for: only those whose modules the program has imported."""

from __future__ import annotations

from tensorlens.frameworks.keras.kinds import (
    class_name,
    content_of,
    imported,
    items_of,
    layer,
    metric,
    optimizer,
    seed_generator,
)

__all__ = [
    "class_name",
    "content_of",
    "dataset",
    "distributed_variable",
    "eager_tensor",
    "func_graph",
    "indexed_slices",
    "items_of",
    "iterator",
    "keras_variable",
    "layer",
    "legacy_optimizer",
    "metric",
    "module",
    "optimizer",
    "seed_generator",
    "tape",
    "variable",
]


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


def legacy_optimizer() -> type:
    """Return the class of TensorFlow's own optimizers, of ``tf.compat.v1.train``."""
    return imported("tensorflow.python.training.optimizer", "Optimizer")


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
