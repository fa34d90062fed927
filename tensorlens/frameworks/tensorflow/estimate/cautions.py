"""What is assumed of a run that was only traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorlens.frameworks.keras.train_steps.shapes import TYPES_ARE_GUESSED, tells_types
from tensorlens.frameworks.tensorflow.estimate.asked import Asked
from tensorlens.frameworks.tensorflow.estimate.nodes import Node
from tensorlens.frameworks.tensorflow.estimate.orders import BATCHES_AHEAD
from tensorlens.records.traces import Caution
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
    "recurrent layers are told as loops; on a GPU Keras takes cuDNN's own kernels where it can, "
    "which keep a reserve of their own"
)
_ORDER = (
    "operations that are ready at the same time run in an order that only a run tells: two "
    "orders were simulated, and the bounds are as far apart as measured steps were"
)
_UNROLLED = "recurrent layers were written out step by step, as Python runs them"
_ONE_BATCH = "one batch is counted: what the input pipeline holds ahead is tensorlens.inputs()'s"
_AHEAD = (
    "the upper bound has room for {} more batches ({} each), which fit() holds ahead of the step; "
    "of NumPy arrays it may keep a copy, of all samples, which is not counted"
)


def cautions(
    nodes: Sequence[Node], asked: Asked, model: Any, batch: int, xla: str
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
    else:
        texts += [_GROWTH] if asked.eager else [_LAYOUT, _GROWTH]
        # compile() on a machine without a GPU says False for "auto" as well
        texts += [_AUTO] if not (asked.eager or xla) else []
        texts += [_CUDNN] if any(op.startswith(("Conv", "_FusedConv")) for op in ops) else []
        texts += [_POOLING] if any("Pool3D" in op for op in ops) else []
        texts += [_RECURRENT] if recurrent else []
    return [Caution(text) for text in texts]
