"""The table of operators that are answered before torch's own fake kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorlens.planning.torch.operators import (
    accumulation,
    data_sizes,
    losses,
    products,
    recurrent,
)

ANSWERS: dict[Any, Callable[..., Any]] = {
    **data_sizes.ANSWERS,
    **losses.ANSWERS,
    **recurrent.ANSWERS,
    **products.ANSWERS,
    **accumulation.ANSWERS,
}
"""Handlers by operator, called with the mode, the operator and its arguments; ``NotImplemented``
passes on to torch."""
