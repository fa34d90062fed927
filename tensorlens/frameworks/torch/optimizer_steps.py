"""Steps of an unmarked loop: those of its first optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def when_stepped(act: Callable[[], None]) -> Callable[[], None]:
    """Call ``act`` after each step of the program's first optimizer; return what ends that.

    The first optimizer is known by its first parameter, so that one created anew in each step
    counts too, and the second of a loop with two does not. When that parameter is gone, the next
    optimizer to step takes its place.
    """
    first: weakref.ref[Any] | None = None

    def stepped(optimizer: Any, arguments: Any, options: Any) -> None:
        nonlocal first
        if torch.compiler.is_compiling():
            return
        groups = optimizer.param_groups
        parameter = next((each for group in groups for each in group["params"]), None)
        if parameter is None:
            return
        known = None if first is None else first()
        if known is None:
            first = weakref.ref(parameter)
        if known is None or known is parameter:
            del known, parameter
            act()

    handle = register_optimizer_step_post_hook(stepped)
    return lambda: handle.remove()
