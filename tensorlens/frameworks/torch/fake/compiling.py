"""``torch.compile``: the program is run as it is written, and hears of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_WARNING = (
    "torch.compile is not simulated: the function was run as it is written; fused kernels usually "
    "need less memory"
)


def install(warn: Callable[[str], None]) -> None:
    """Let ``torch.compile`` and ``Module.compile`` give back what they are given."""

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda decorated: compile(decorated, **options)
        warn(_WARNING)
        if isinstance(model, torch.nn.Module):
            # programs reach through the wrapper that is not there
            vars(model)["_orig_mod"] = model
        return model

    def compile_module(module: Any, *args: Any, **options: Any) -> None:
        warn(_WARNING)

    torch.compile = compile
    torch.nn.Module.compile = compile_module
