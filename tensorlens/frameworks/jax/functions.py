"""What of a program JAX compiles, told without importing it."""

from __future__ import annotations

from typing import Any

from tensorlens.frameworks.keras import kinds

_MADE_BY_JIT = "PjitFunction"


def compiled_by(function: Any) -> str | None:
    """Return ``jax.jit`` for a function that it made, else None."""
    kind = type(function)
    is_of_jax = kind.__module__.partition(".")[0] in ("jax", "jaxlib")
    return "jax.jit" if is_of_jax and kind.__name__ == _MADE_BY_JIT else None


def forward_of(item: Any) -> str | None:
    """Return ``call`` when ``item`` is a Keras layer, else None."""
    return "call" if issubclass(type(item), kinds.layer()) else None
