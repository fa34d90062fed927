"""What is asked of a Keras model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorlens.records.cards import Card


@dataclass(frozen=True, slots=True)
class Asked:
    """One question, checked."""

    batch: int
    optimizer: Any = None
    """A name or a Keras optimizer; None: the one that the model is compiled with."""
    loss: Any = None
    policy: str | None = None
    """``mixed_float16``; None: what the model has."""
    eager: bool = False
    """Whether the step is run operation by operation (``run_eagerly=True``)."""
    device: str = "cuda"
    """``cuda`` or ``cpu``."""
    card: Card | None = None
    input_shape: Any = None
    """Shape of the inputs without the batch, where the model does not know it."""
    input_dtype: str | None = None
    """Of inputs whose type the model does not tell; None: Keras's default for floats."""
