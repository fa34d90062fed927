"""What of a program JAX compiles, told without importing it."""

from __future__ import annotations

import sys
from typing import Any

from tensorlens.frameworks.keras import kinds

_MADE_BY_JIT = "PjitFunction"
_CORE = "jax._src.core"
_OF_JIT = "DynamicJaxprTrace"


def is_building() -> bool:
    """Tell whether this thread runs code only for ``jax.jit`` or another to see what it does.

    Not so below ``jax.grad`` or ``jax.vmap`` alone, which compute.
    """
    now = getattr(sys.modules.get(_CORE), "trace_ctx", None)
    trace = getattr(now, "trace", None)
    while trace is not None:
        if type(trace).__name__ == _OF_JIT:
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def compiled_by(function: Any) -> str | None:
    """Return ``jax.jit`` for a function that it made, else None."""
    kind = type(function)
    is_of_jax = kind.__module__.partition(".")[0] in ("jax", "jaxlib")
    return "jax.jit" if is_of_jax and kind.__name__ == _MADE_BY_JIT else None


def forward_of(item: Any) -> str | None:
    """Return ``call`` when ``item`` is a Keras layer, else None."""
    return "call" if issubclass(type(item), kinds.layer()) else None
