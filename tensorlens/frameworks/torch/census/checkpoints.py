"""What checkpointing keeps of a region in place of its activations: its inputs, its random state.

Read from where torch.utils.checkpoint (torch 2.13) has it; what an older one does not have is left
out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

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
    return Region(_module_of(_free(getattr(frame, "recompute_fn", None)).get("function")))


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
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__self__", function)
    return function if issubclass(type(function), torch.nn.Module) else None


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
