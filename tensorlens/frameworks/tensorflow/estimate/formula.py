"""The formula for a Keras model's memory that is passed around, and why it is off."""

from __future__ import annotations

from math import prod
from typing import Any

from tensorlens.frameworks.tensorflow.estimate.nodes import ITEM_SIZES
from tensorlens.records.traces import Formula

_NAME = "weights + layer outputs"
_WHY = (
    "the sum of stackoverflow.com/questions/43137288: each layer's weights and one output, as a "
    "forward pass would keep them; it leaves out gradients, what backward computes, optimizer "
    "slots, fp32 copies under mixed precision and what kernels take, and it counts an activation "
    "twice when it is a layer of its own, though the graph is the same"
)


def popular(model: Any, batch: int) -> tuple[Formula, ...]:
    """Return what it comes to; nothing where a layer's output has no shape."""
    try:
        return (Formula(_NAME, _summed(model, batch), _WHY),)
    except Exception:  # a model of one's own class has layers of any kind
        return ()


def _summed(model: Any, batch: int) -> int:
    import keras

    total = 0
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            total += _summed(layer, batch)
        size = ITEM_SIZES[layer.compute_dtype]
        output = layer.output
        first = output[0] if isinstance(output, (list, tuple)) else output
        total += (
            batch * prod(each for each in first.shape if each is not None) * ITEM_SIZES[first.dtype]
        )
        total += layer.count_params() * size
    return total
