"""Functions that TensorFlow compiles, and the methods that layers and modules compute with."""

from __future__ import annotations

from typing import Any

import tensorflow
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from tensorlens.frameworks.compilers import wrapped
from tensorlens.frameworks.keras import kinds
from tensorlens.heap.attributes import is_subtype

_GRAPH = "tf.function"
_XLA = "tf.function(jit_compile=True)"


def compiled_by(function: Any) -> str | None:
    """Return the compiler of a function or of one that it wraps; None if there is none."""
    for each in wrapped(function):
        if is_subtype(type(each), polymorphic_function.Function):
            return _XLA if getattr(each, "_jit_compile", None) else _GRAPH
        if is_subtype(type(each), tensorflow.types.experimental.ConcreteFunction):
            return _GRAPH
    return None


def forward_of(item: Any) -> str | None:
    """Return the attribute that computes: ``call`` of a Keras layer, ``__call__`` of a module.

    For a ``tf.function`` it is the Python function that is traced.
    """
    if is_subtype(type(item), polymorphic_function.Function):
        return "_python_function"
    if issubclass(type(item), kinds.layer()):
        return "call"
    if issubclass(type(item), tensorflow.Module) and callable(item):
        return "__call__"
    return None
