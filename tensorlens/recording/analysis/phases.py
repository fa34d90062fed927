"""Phases of a program, and purposes of the memory that known functions take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorlens.records.events import Context, Frame, Phase, Stacks

_LANDMARKS: dict[tuple[str, str], Phase] = {
    ("torch/nn/modules/module.py", "_call_impl"): "forward",
    ("torch/optim/optimizer.py", "wrapper"): "optimizer",
    ("torch/autograd/graph.py", "_engine_run_backward"): "backward",
    ("torch/autograd/__init__.py", "_make_grads"): "backward",
    ("keras/src/layers/layer.py", "__call__"): "forward",
    ("keras/src/optimizers/base_optimizer.py", "apply"): "optimizer",
    ("tensorflow/python/training/optimizer.py", "apply_gradients"): "optimizer",
    ("tensorflow/python/eager/backprop.py", "gradient"): "backward",
    ("tensorflow/python/eager/backprop.py", "jacobian"): "backward",
}
"""Where torch 2.4 to 2.13 runs modules, a step of an optimizer and the autograd engine, and makes
the gradients that it begins with; where Keras 3 calls layers and steps its own optimizers, and
TensorFlow 2.16 to 2.21 goes back over a tape."""


def landmark(frame: Frame) -> Phase | None:
    """Return the phase that a frame begins, None where it begins none."""
    phases = (phase for place, phase in _LANDMARKS.items() if _is_at(frame, *place))
    return next(phases, None)


def _is_at(frame: Frame, place: str, name: str) -> bool:
    if frame.function.rpartition(".")[2] != name:
        return False
    return f"/{frame.filename}".replace("\\", "/").endswith(f"/{place}")


class Phases:
    """The phase of each stack and context.

    What whoever recorded says counts first. Else it is the phase that the stack was in, outermost
    frame to innermost: a module's call is forward, unless backward runs already (it computes
    again what was not kept); a step of an optimizer is optimizer, also from a hook of backward;
    the autograd engine is backward. Where a node runs it is backward, unless an optimizer steps;
    where an operator made a node outside of all these, forward.
    """

    def __init__(self, stacks: Stacks, contexts: Sequence[Context]) -> None:
        self._contexts = contexts
        self._begun = [landmark(frame) for frame in stacks.frames]
        self._states = self._walk(stacks)

    def of(self, stack: int, context: int) -> Phase:
        """Return the phase of a stack and a context; -1 stands for none."""
        state: Phase = "other" if stack < 0 else self._states[stack]
        if context < 0:
            return state
        what = self._contexts[context]
        if what.phase is not None:
            return what.phase
        if what.node is not None and state != "optimizer":
            return "backward"
        return "forward" if what.grad and state == "other" else state

    def _walk(self, stacks: Stacks) -> list[Phase]:
        states: list[Phase] = []
        for parent, frame in zip(stacks.parent, stacks.frame, strict=True):
            outer: Phase = "other" if parent < 0 else states[parent]
            begun = self._begun[frame]
            again = begun == "forward" and outer == "backward"
            states.append(outer if begun is None or again else begun)
        return states


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
