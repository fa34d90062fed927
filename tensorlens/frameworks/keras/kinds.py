"""Functions that return Keras's classes; ``MissingClass`` until Keras is imported."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from tensorlens.heap.attributes import imported

variable = partial(imported, "keras.src.backend.common.variables", "Variable")
"""Returns the base class of every backend's variables."""
layer = partial(imported, "keras.src.layers.layer", "Layer")
"""Returns the class of layers and models."""
tensorflow_variable = partial(imported, "keras.src.backend.tensorflow.core", "Variable")
model = partial(imported, "keras.src.models.model", "Model")
optimizer = partial(imported, "keras.src.optimizers.base_optimizer", "BaseOptimizer")


def is_inherited(item: Any, method: str) -> bool:
    """Tell whether the class of a model inherits a method from ``keras.Model``."""
    return getattr(type(item), method) is getattr(model(), method)


def backend() -> str:
    """Return Keras's backend, such as ``tensorflow``; an empty text until Keras is imported."""
    content = getattr(sys.modules.get("keras.src.backend.config"), "__dict__", {})
    return str(content.get("_BACKEND", ""))
