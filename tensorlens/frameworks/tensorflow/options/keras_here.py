"""Keras as options need it: installed, and on TensorFlow."""

from __future__ import annotations

import importlib
from typing import Any

from tensorlens.frameworks.tensorflow.options.stage import CannotApply


def keras(setting: str) -> Any:
    """Return Keras.

    Raises:
        CannotApply: there is none, or it runs on another framework.
    """
    try:
        found = importlib.import_module("keras")
    except ImportError:
        raise CannotApply(f"{setting} needs Keras 3, which is not installed") from None
    backend = found.config.backend() if hasattr(found, "config") else ""
    if backend != "tensorflow":
        raise CannotApply(f"{setting}: this Keras runs on {backend or 'an old TensorFlow'}")
    return found
