"""Whether Python runs only to build a graph, and what autograph makes of wrapped functions."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from tensorflow.python.autograph.impl import api
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

_executing_eagerly = context.executing_eagerly


def is_building() -> bool:
    """Tell whether a function is being traced in this thread.

    Not so in ``tf.init_scope`` or ``tf.py_function``, nor in a graph of TensorFlow 1, whose
    sessions run between the lines that build it.
    """
    return not _executing_eagerly() and bool(ops.get_default_graph().building_function)


def as_called(function: Any) -> Any:
    """Return what the wrapper that asks has to call in place of ``function``.

    Autograph does not convert our wrappers, which carry its mark ``autograph_info__``. Where it was
    autograph that called one, it is given what is inside, with the options it came with
    (_call_unconverted of tensorflow/python/autograph/impl/api.py, 2.21).
    """
    caller: FrameType | None = sys._getframe(2)
    if caller is not None and caller.f_code is _of_methods():
        caller = caller.f_back
    if caller is None or caller.f_code is not _of_functions():
        return function
    options = caller.f_locals.get("options")
    if options is None:
        return function

    def converted(*args: Any, **kwargs: Any) -> Any:
        return api.converted_call(function, args, kwargs, options=options)

    return converted


@functools.cache
def _of_functions() -> CodeType | None:
    return _code(getattr(api, "_call_unconverted", None))


@functools.cache
def _of_methods() -> CodeType | None:
    target = getattr(api, "tf_method_target", None)
    return _code(getattr(getattr(target, "TfMethodTarget", None), "call", None))


def _code(function: Callable[..., Any] | None) -> CodeType | None:
    return getattr(function, "__code__", None)
