"""What of a program TensorFlow compiles into graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from tensorlens.frameworks.census.wrappers import wrapped

_GRAPH = "tf.function"
_XLA = "tf.function(jit_compile=True)"


def compiled_by(function: Any) -> str | None:
    """Return what compiles ``function`` away, looking at what it wraps as well; else None."""
    for each in wrapped(function):
        if issubclass(type(each), polymorphic_function.Function):
            return _XLA if getattr(each, "_jit_compile", None) else _GRAPH
        if issubclass(type(each), tensorflow.types.experimental.ConcreteFunction):
            return _GRAPH
    return None


def forward_of(item: Any) -> str | None:
    """Return the method that computes: ``call`` of a Keras layer, ``__call__`` of a module.

    Of a ``tf.function`` it is the Python function inside, which it traces.
    """
    if issubclass(type(item), polymorphic_function.Function):
        return "_python_function"
    layer = getattr(sys.modules.get("keras.src.layers.layer"), "Layer", ())
    if issubclass(type(item), layer):
        return "call"
    if issubclass(type(item), tensorflow.Module) and callable(item):
        return "__call__"
    return None


def keep_autograph_out(functions: Sequence[Callable[..., Any]]) -> None:
    """Mark functions as nothing to convert (tensorflow/python/autograph/impl/api.py, 2.21)."""
    for function in functions:
        marks: Any = function
        marks.autograph_info__ = {}
