"""Reads what checkpointing keeps in place of activations: its inputs, its random state.

Read from where torch.utils.checkpoint (torch 2.13) has it; what an older one does not have is left
out.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

_CHECKPOINTED = ("fn", "function")
"""Names of the checkpointed function in the closure: torch 2.13, and before."""
REENTRANT = "CheckpointFunctionBackward"


@dataclass(slots=True, eq=False)
class Region:
    """A part of the forward pass that backward runs again."""

    module: Any = None
    """The module that is checkpointed, if it is one."""
    nodes: list[Any] = field(default_factory=list)
    """The nodes made in it."""


def frame_of(hook: Any) -> Any:
    """Return the frame of a region that is not reentrant, by an unpack hook; None: no such hook."""
    if getattr(hook, "__module__", None) != "torch.utils.checkpoint":
        return None
    return _free(hook).get("frame")


def region_of(frame: Any) -> Region:
    """Return a new region for a frame."""
    free = _free(getattr(frame, "recompute_fn", None))
    return Region(_module_of(next(filter(None, map(free.get, _CHECKPOINTED)), None)))


def kept_by(frame: Any) -> Iterator[tuple[str, Any]]:
    """Give what a frame keeps: ``(what it is, tensor or container)``."""
    for index, item in enumerate(getattr(frame, "saved_args", ())):
        # torch 2.13 keeps tensors as saved tensors, and the rest plainly
        saved = issubclass(type(item), torch._C._autograd.SavedTensor)
        yield f"checkpoint input[{index}]", item.data if saved else item
    cells = _free(getattr(frame, "recompute_fn", None))
    for name in ("fwd_cpu_state", "fwd_device_states"):
        yield "checkpoint random state", cells.get(name)


def reentrant(node: Any) -> tuple[Region, list[tuple[str, Any]]]:
    """Return the region of a reentrant checkpoint's node, and what it keeps beside its inputs."""
    region = Region(_module_of(getattr(node, "run_function", None)), [node])
    states = ("fwd_cpu_state", "fwd_device_states")
    return region, [("checkpoint random state", getattr(node, name, None)) for name in states]


def _module_of(function: Any) -> Any:
    """Return the module that a function is, is a method of, or alone refers to; else None."""
    while type(function) is functools.partial:
        function = function.func
    if type(function) is types.MethodType:
        function = function.__self__
    if type(function) is types.FunctionType:
        held = [each for each in _free(function).values() if _is_module(each)]
        function = held[0] if len(held) == 1 else None
    return function if _is_module(function) else None


def _is_module(item: Any) -> bool:
    return issubclass(type(item), torch.nn.Module)


def _free(function: Any) -> dict[str, Any]:
    """Return the free variables of a function of torch's that have a value."""
    code = getattr(function, "__code__", None)
    found = {}
    for name, cell in zip(
        getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or (), strict=False
    ):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found
