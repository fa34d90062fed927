"""Purposes of memory that known functions take: torch's data parallel wrappers, Keras's layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorlens.recording.analysis.phases import landmark
from tensorlens.records.events import Context, Frame, Stacks


@dataclass(frozen=True, slots=True)
class Purpose:
    """Purpose of a function's memory."""

    what: str
    role: str
    """One of :data:`tensorlens.roles.ROLES`."""
    has_scratch: bool = False
    """Whether it needs scratch besides, which it gives back at once."""


_UNSHARDED = Purpose("unsharded parameters", "parameter")
_GATHERED = Purpose("all-gather of parameters", "parameter")
_SCATTERED = Purpose("reduce-scatter of gradients", "gradient")
_BUCKETS = Purpose("gradient bucket", "gradient")
_USED = Purpose("map of used parameters", "other")
_WEIGHT = Purpose("initial value of a weight", "parameter", has_scratch=True)

_OF_FUNCTIONS = {
    ("_fsdp_param.py", "alloc_storage"): _UNSHARDED,
    ("_fsdp_param.py", "init_all_gather_outputs"): _UNSHARDED,
    ("_fsdp_collectives.py", "foreach_all_gather"): _GATHERED,
    ("_fsdp_collectives.py", "foreach_reduce"): _SCATTERED,
    ("_flat_param.py", "_alloc_padded_unsharded_flat_param"): _UNSHARDED,
}
"""File and function of fully_shard and FSDP (torch 2.4 to 2.13), and what they call."""
_ITSELF = {
    ("torch/nn/parallel/distributed.py", "_pre_forward"): _BUCKETS,
    ("torch/nn/parallel/distributed.py", "_ddp_init_helper"): _BUCKETS,
}
"""Functions of DistributedDataParallel whose reducer, which is no Python, takes memory."""
_ADD_WEIGHT = "keras/src/layers/layer.py", "add_weight"
"""Where a layer makes its weights, also those that an optimizer replaces soon."""
_FSDP = ("torch/distributed/fsdp/", "torch/distributed/_composable/fsdp/")


def purposes(stacks: Stacks) -> Sequence[Purpose | None]:
    """Return the purpose of what is allocated on each stack; None where no such function does."""
    called = [_of_function(frame) for frame in stacks.frames]
    itself = [_of_itself(frame) for frame in stacks.frames]
    ends = [frame.user or landmark(frame) is not None for frame in stacks.frames]
    inherited: list[Purpose | None] = []
    for parent, frame in zip(stacks.parent, stacks.frame, strict=True):
        outer = None if parent < 0 or ends[frame] else inherited[parent]
        inherited.append(called[frame] or outer)
    return [
        purpose or itself[frame] for purpose, frame in zip(inherited, stacks.frame, strict=True)
    ]


def purpose_in(purpose: Purpose | None, context: Context) -> Purpose | None:
    """Return the purpose of what is allocated on a stack of that purpose while an operator runs."""
    # the reducer fills no bucket with zeros
    return _USED if purpose is _BUCKETS and context.outer == "aten::zeros" else purpose


def _of_function(frame: Frame) -> Purpose | None:
    path = frame.filename.replace("\\", "/")
    if frame.function.rpartition(".")[2] == _ADD_WEIGHT[1] and path.endswith(_ADD_WEIGHT[0]):
        return _WEIGHT
    if not any(folder in path for folder in _FSDP):
        return None
    return _OF_FUNCTIONS.get((path.rpartition("/")[2], frame.function.rpartition(".")[2]))


def _of_itself(frame: Frame) -> Purpose | None:
    path, function = frame.filename.replace("\\", "/"), frame.function.rpartition(".")[2]
    for (place, name), purpose in _ITSELF.items():
        if function == name and path.endswith(f"/{place}"):
            return purpose
    return None
