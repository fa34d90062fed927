"""Functions that TensorFlow compiles, and our wrappers of functions while it traces them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import tensorflow
from tensorflow.python.autograph.impl import api
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import ops
from tensorflow.python.util import tf_stack

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


def keep_autograph_out(functions: Sequence[Callable[..., Any]]) -> None:
    """Keep autograph from converting functions (tensorflow/python/autograph/impl/api.py, 2.21)."""
    for function in functions:
        marked: Any = function
        marked.autograph_info__ = {}


def _code(module: Any, *names: str) -> CodeType | None:
    for name in (*names, "__code__"):
        module = getattr(module, name, None)
    return module if isinstance(module, CodeType) else None


_CALL_OF_FUNCTIONS = _code(api, "_call_unconverted")
_CALL_OF_METHODS = _code(api, "tf_method_target", "TfMethodTarget", "call")
_executing_eagerly = context.executing_eagerly
_OWN_FILES = frozenset(str(path) for path in Path(__file__).parents[2].rglob("*.py"))


class _WithoutOwnFiles(tf_stack.StackTraceFilter):  # type: ignore[misc]
    """Removes our files from the stacks of operations, as TensorFlow removes its own."""

    def get_filtered_filenames(self) -> frozenset[str]:
        """Return the files to remove, including those of the outer filter."""
        return _OWN_FILES | frozenset(self.parent.get_filtered_filenames())


def is_building() -> bool:
    """Tell whether a function is being traced in this thread.

    This is false in ``tf.init_scope`` and ``tf.py_function``, and in a graph of TensorFlow 1, whose
    sessions run between the lines that build it.
    """
    return not _executing_eagerly() and bool(ops.get_default_graph().building_function)


def as_called(function: Any) -> Any:
    """Return the function that the calling wrapper must call in place of ``function``.

    Autograph does not convert our wrappers, which carry its mark ``autograph_info__``. If autograph
    called the wrapper, the function inside is converted with the options of that call
    (_call_unconverted of tensorflow/python/autograph/impl/api.py, 2.21). The stacks of operations
    made inside, which TensorFlow shows when one fails, do not contain our frames.
    """
    caller: FrameType | None = sys._getframe(2)
    if caller is not None and caller.f_code is _CALL_OF_METHODS:
        caller = caller.f_back
    options = None
    if caller is not None and caller.f_code is _CALL_OF_FUNCTIONS:
        options = caller.f_locals.get("options")

    def called(*args: Any, **kwargs: Any) -> Any:
        with _WithoutOwnFiles():
            if options is None:
                return function(*args, **kwargs)
            return api.converted_call(function, args, kwargs, options=options)

    return called
