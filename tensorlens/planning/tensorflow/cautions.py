"""Assumptions about a step that was only traced, and whether XLA would compile it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensorlens.frameworks.tensorflow.graphs.functions import Functions
from tensorlens.planning.keras.shapes import TYPES_ARE_GUESSED, tells_types
from tensorlens.planning.tensorflow.execution.scratch import LOWER
from tensorlens.planning.tensorflow.graph.nodes import GraphNode
from tensorlens.planning.tensorflow.graph.tracing import TraceRequest
from tensorlens.planning.trace import Caution
from tensorlens.units import format_bytes

_XLA = (
    "{}: XLA plans buffers of its own when it compiles, which are not simulated; the figures are "
    "of the step without XLA, which may take less or more"
)
_AUTO = (
    "these are figures without XLA: on a GPU Keras compiles a step with it unless "
    "compile(jit_compile=False) is written"
)
_LAYOUT = (
    "the graph is optimized as for a CPU: what TensorFlow's layout optimizer would change on a GPU "
    "(channels first for float32 convolutions on cards below 8.0) is told as copies of each kernel"
)
_GROWTH = (
    "TensorFlow takes nearly all of a card at once unless memory growth is set: what is reserved "
    "is told as with tf.config.experimental.set_memory_growth"
)
_CUDNN = (
    "how much cuDNN's convolutions take while they run depends on the algorithms that are picked "
    "on the card: from nothing to copies of all that they read and write"
)
_POOLING = (
    "cuDNN pools three dimensions with channels first only: input and output, and in backward "
    "their gradients too, are copied (cudnn_pooling_gpu.cc)"
)
_RECURRENT = (
    "recurrent layers are estimated as loops; on a GPU Keras takes cuDNN's own kernels where it"
    " can, which keep a reserve of their own"
)
_ORDER = (
    "operations that are ready at the same time, and iterations of loops, run in an order that only"
    " a run tells: one was simulated, and the bounds are as far from it as measured steps were"
)
_PRODUCTS = (
    "what products in bfloat16 take on this processor was counted by running each once; those of "
    "more than 2 billion multiplications were not run: they may take more"
)
BATCHES_AHEAD = 4
"""Batches that Keras' adapter of arrays holds besides the step's, as measured of ``fit``."""
_UNROLLED = "recurrent layers were written out step by step, as Python runs them"
_ONE_BATCH = "one batch is counted; tensorlens.inputs() tells what the input pipeline holds ahead"
_AHEAD = (
    "the upper bound has room for {} more batches ({} each), which fit() holds ahead of the step; "
    "of NumPy arrays it may keep a copy, of all samples, which is not counted"
)


def cautions(
    nodes: Sequence[GraphNode], asked: TraceRequest, model: Any, batch: int, xla: str
) -> list[Caution]:
    """Return what applies to a graph on a device.

    Args:
        nodes: of the graph.
        asked: what is asked.
        model: whose step it is.
        batch: bytes of one batch.
        xla: why XLA compiles the step or a part of it; empty where it does not.
    """
    ops = {node.op for node in nodes}
    recurrent = any(hasattr(each, "unroll") for each in model._flatten_layers())
    on_host = asked.device == "cpu"
    texts = [_AHEAD.format(BATCHES_AHEAD, format_bytes(batch)) if on_host else _ONE_BATCH]
    texts += [_XLA.format(xla)] if xla else []
    if asked.input_dtype is None and not tells_types(model):
        texts.append(TYPES_ARE_GUESSED)
    if on_host:
        if not asked.eager:
            texts.append(_ORDER)
        elif recurrent:
            texts.append(_UNROLLED)
        if any("MatMul" in node.op and node.attrs.get("T") == LOWER for node in nodes):
            texts.append(_PRODUCTS)
    else:
        texts += [_GROWTH] if asked.eager else [_LAYOUT, _GROWTH]
        # compile() on a machine without a GPU says False for "auto" as well
        texts += [_AUTO] if not (asked.eager or xla) else []
        texts += [_CUDNN] if any(op.startswith(("Conv", "_FusedConv")) for op in ops) else []
        texts += [_POOLING] if any("Pool3D" in op for op in ops) else []
        texts += [_RECURRENT] if recurrent else []
    return [Caution(text) for text in texts]


def compiled_by(model: Any, asked: TraceRequest, function: str) -> str:
    """Return what has XLA compile a step; empty where nothing does.

    Args:
        model: whose step it is.
        asked: what is asked of it.
        function: the name that the traced step has in TensorFlow's runtime.
    """
    if not asked.eager:
        given = keras_setting(model)
        if given == "auto" and asked.device != "cpu" and _allows(model):
            return "Keras compiles a step with XLA on a GPU unless compile(jit_compile=False)"
        if given is True:
            return "compile(jit_compile=True)"
    if Functions().compiled(function):
        return "tf.function(jit_compile=True)"
    if tf.config.optimizer.get_jit():
        return "tf.config.optimizer.set_jit()"
    return ""


def keras_setting(model: Any) -> Any:
    """Return ``jit_compile`` of a model: True, False, or ``auto``, on which the device decides."""
    compiled = getattr(model, "_compile_config", None)
    given = "auto" if compiled is None else compiled.config.get("jit_compile", "auto")
    # what is set after compile() counts
    return given if given == "auto" else bool(getattr(model, "jit_compile", given))


def _allows(model: Any) -> bool:
    return all(getattr(layer, "supports_jit", True) for layer in model._flatten_layers())
