"""A step that begins without the gradients of the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorlens.frameworks.heap.objects import instances


def gradients_first(make_step: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    """Make the step, and return it with ``zero_grad()`` of all optimizers called before it."""
    step = make_step()
    optimizers = instances(torch.optim.Optimizer)

    def run() -> Any:
        for optimizer in optimizers:
            optimizer.zero_grad()
        return step()

    return run
