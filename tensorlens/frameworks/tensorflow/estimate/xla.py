"""Whether XLA compiles a step or a part of it: its buffers are no kernel's of TensorFlow's."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from tensorlens.frameworks.tensorflow.estimate.asked import Asked

_MARK = "_XlaMustCompile"
"""An attribute of the functions of ``tf.function(jit_compile=True)``."""
_FLAG = "--tf_xla_auto_jit="


def compiled_by(model: Any, asked: Asked, graph: Any) -> str:
    """Return what has XLA compile a step; empty where nothing does.

    Args:
        model: whose step it is.
        asked: what is asked of it.
        graph: of its step, as it was traced.
    """
    if not asked.eager:
        given = keras_setting(model)
        if given == "auto" and asked.device != "cpu" and _allows(model):
            return "Keras compiles a step with XLA on a GPU unless compile(jit_compile=False)"
        if given is True:
            return "compile(jit_compile=True)"
    if _has_compiled_function(graph):
        return "tf.function(jit_compile=True)"
    if tf.config.optimizer.get_jit():
        return "tf.config.optimizer.set_jit()"
    if _FLAG in os.environ.get("TF_XLA_FLAGS", "").replace(f"{_FLAG}0", ""):
        return f"TF_XLA_FLAGS={os.environ['TF_XLA_FLAGS']}"
    return ""


def keras_setting(model: Any) -> Any:
    """Return ``jit_compile`` of a model: True, False, or ``auto``, on which the device decides."""
    compiled = getattr(model, "_compile_config", None)
    given = "auto" if compiled is None else compiled.config.get("jit_compile", "auto")
    # what is set after compile() counts
    return given if given == "auto" else bool(getattr(model, "jit_compile", given))


def _allows(model: Any) -> bool:
    return all(getattr(layer, "supports_jit", True) for layer in model._flatten_layers())


def _has_compiled_function(graph: Any) -> bool:
    definition = graph.as_graph_def()
    return any(
        each.attr[_MARK].b
        for each in (*definition.node, *definition.library.function)
        if _MARK in each.attr
    )
