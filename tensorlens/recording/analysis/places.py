"""Phase, purpose, line and module of an event, by its site: a stack and a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tensorlens.records.logs.events import Context, Phase
from tensorlens.records.logs.stacks import Frame, Stacks
from tensorlens.records.tensors import SourceLine

_T = TypeVar("_T")
_LANDMARKS: dict[tuple[str, str], Phase] = {
    ("/torch/nn/modules/module.py", "_call_impl"): "forward",
    ("/torch/optim/optimizer.py", "wrapper"): "optimizer",
    ("/torch/autograd/graph.py", "_engine_run_backward"): "backward",
    ("/torch/autograd/__init__.py", "_make_grads"): "backward",
    ("/keras/src/layers/layer.py", "__call__"): "forward",
    ("/keras/src/optimizers/base_optimizer.py", "apply"): "optimizer",
    ("/tensorflow/python/training/optimizer.py", "apply_gradients"): "optimizer",
    ("/tensorflow/python/eager/backprop.py", "gradient"): "backward",
    ("/tensorflow/python/eager/backprop.py", "jacobian"): "backward",
}
"""Functions that begin a phase: of torch 2.4 to 2.13 calls of modules, steps of optimizers, the
autograd engine and its first gradients; of Keras 3 calls of layers and steps of optimizers; of
TensorFlow 2.16 to 2.21 the gradients of a tape."""


def landmark(frame: Frame) -> Phase | None:
    """Return the phase that a frame begins; None if it begins none."""
    return _known(frame, _LANDMARKS)


def _known(frame: Frame, functions: Mapping[tuple[str, str], _T]) -> _T | None:
    """Return the entry of a frame's function, by the end of its path and its name."""
    name, path = frame.function.rpartition(".")[2], f"/{frame.filename}".replace("\\", "/")
    found = (
        each for (end, known), each in functions.items() if known == name and path.endswith(end)
    )
    return next(found, None)


class Phases:
    """The phase of each stack and context.

    A phase that the recorder stated counts first. Otherwise the stack decides, from the outermost
    frame: a module's call is forward, unless backward runs already (recomputation); an optimizer's
    step is optimizer, also in a hook of backward; the autograd engine is backward. A running node
    means backward, unless an optimizer steps; an operator that made a node in no phase, forward.
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
    """Whether it also allocates scratch, which it frees at once."""


_UNSHARDED = Purpose("unsharded parameters", "parameter")
_GATHERED = Purpose("all-gather of parameters", "parameter")
_SCATTERED = Purpose("reduce-scatter of gradients", "gradient")
_BUCKETS = Purpose("gradient bucket", "gradient")
_WEIGHT = Purpose("initial value of a weight", "parameter", has_scratch=True)

_PURPOSES_WITH_CALLEES = {
    ("/_fsdp_param.py", "alloc_storage"): _UNSHARDED,
    ("/_fsdp_param.py", "init_all_gather_outputs"): _UNSHARDED,
    ("/_fsdp_collectives.py", "foreach_all_gather"): _GATHERED,
    ("/_fsdp_collectives.py", "foreach_reduce"): _SCATTERED,
    ("/_flat_param.py", "_alloc_padded_unsharded_flat_param"): _UNSHARDED,
    ("/keras/src/layers/layer.py", "add_weight"): _WEIGHT,
}
"""Functions whose callees count too: of fully_shard and FSDP (torch 2.4 to 2.13), and of Keras's
layers that make weights."""
_PURPOSES_ALONE = {
    ("/torch/nn/parallel/distributed.py", "_pre_forward"): _BUCKETS,
    ("/torch/nn/parallel/distributed.py", "_ddp_init_helper"): _BUCKETS,
}
"""Functions of DistributedDataParallel in which its C++ reducer allocates."""


def purposes(stacks: Stacks) -> Sequence[Purpose | None]:
    """Return the purpose of memory allocated on each stack; None if no known function is on it."""
    called = [
        None if frame.user else _known(frame, _PURPOSES_WITH_CALLEES) for frame in stacks.frames
    ]
    itself = [_known(frame, _PURPOSES_ALONE) for frame in stacks.frames]
    ends = [frame.user or landmark(frame) is not None for frame in stacks.frames]
    inherited: list[Purpose | None] = []
    for parent, frame in zip(stacks.parent, stacks.frame, strict=True):
        outer = None if parent < 0 or ends[frame] else inherited[parent]
        inherited.append(called[frame] or outer)
    return [
        purpose or itself[frame] for purpose, frame in zip(inherited, stacks.frame, strict=True)
    ]


_WITHIN_LINE = ("<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
"""Names of functions that begin within a line of another one."""


class Lines:
    """Lines and modules of stacks and contexts; -1 stands for no stack and no context.

    In backward a block is charged to the innermost user frame that the autograd engine called
    (recomputed checkpoints, hooks, custom backward functions), else to the line that made the
    running node, else to the line that ran backward. Modules are found the same way. A stack
    without a user frame is charged to its innermost Python frame, else to its innermost C++ frame.

    If the user's frame calls a library's model, there is a second line: the innermost of the
    model's own code. Comprehensions and lambdas go by the function around them.
    """

    def __init__(self, stacks: Stacks, contexts: Sequence[Context]) -> None:
        self._stacks = stacks
        self._contexts = contexts
        self._lines = _lines(stacks)
        frames = stacks.frames
        self._engines = [landmark(frame) == "backward" for frame in frames]
        """Whether a frame calls the autograd engine."""
        user = _nodes(stacks, [frame.user for frame in frames])
        python = _nodes(stacks, [frame.is_python for frame in frames])
        model = _nodes(stacks, [frame.model for frame in frames])
        engine = _nodes(stacks, self._engines)
        self._user = _innermost(stacks, user)
        self._user_inside = _innermost(stacks, user, engine)
        self._python = _innermost(stacks, python)
        self._module = _innermost(stacks, stacks.module)
        self._module_inside = _innermost(stacks, stacks.module, engine)
        # a user's frame inside a library's model hides the model's line
        self._model = _innermost(stacks, model, user)
        self._model_inside = _innermost(stacks, model, user, engine)
        self._engine = _innermost(stacks, engine)

    def charged(self, stack: int, context: int, phase: str) -> SourceLine | None:
        """Return the line that a block is charged to; None if unknown."""
        node = self._charged(stack, context, phase)
        return None if node < 0 else self._line(node)

    def charged_and_callers(self, stack: int, context: int, phase: str) -> tuple[SourceLine, ...]:
        """Return the line of :meth:`charged` and the user's lines that called it, each once.

        Callers of the autograd engine do not count for a line that the engine called.
        """
        node = self._charged(stack, context, phase)
        line = None if node < 0 else self._line(node)
        found = {} if line is None else {line: None}
        while node >= 0 and not self._engines[self._stacks.frame[node]]:
            line = self._line(node) if self._user[node] == node else None
            if line is not None:
                found[line] = None
            node = self._stacks.parent[node]
        return tuple(found)

    def _charged(self, stack: int, context: int, phase: str) -> int:
        """Return the stack node that a block is charged to, or -1."""
        if phase != "backward":
            return -1 if stack < 0 else _first(self._user[stack], self._python[stack], stack)
        forward = self._forward(context)
        inside, outside = _at(self._user_inside, stack), _at(self._user, stack)
        if self._has_stated_phase(stack, context):
            inside = -1
        users = inside, _at(self._user, forward), outside
        return _first(*users, _at(self._python, forward), _at(self._python, stack), forward, stack)

    def model(self, stack: int, context: int, phase: str) -> SourceLine | None:
        """Return the line of a library's model that the line of :meth:`charged` calls, or None."""
        node = _at(self._model, stack)
        if phase == "backward":
            user, node = _at(self._user_inside, stack), _at(self._model_inside, stack)
            if self._has_stated_phase(stack, context):
                user = node = -1
            if user < 0 and node < 0:
                node = _at(self._model, self._forward(context))
        return None if node < 0 else self._line(node)

    def module(self, stack: int, context: int, phase: str) -> str | None:
        """Return the path of the module that a block belongs to, None outside of modules."""
        if context >= 0 and self._contexts[context].module is not None:
            return self._contexts[context].module
        number = _at(self._module, stack)
        if phase == "backward":
            made = _at(self._module, self._forward(context))
            number = _first(_at(self._module_inside, stack), made, number)
        return None if number < 0 else self._stacks.modules[number]

    def _has_stated_phase(self, stack: int, context: int) -> bool:
        """Return whether the recorder stated the phase and no autograd engine is on the stack."""
        if context < 0 or self._contexts[context].phase is None:
            return False
        return _at(self._engine, stack) < 0

    def _forward(self, context: int) -> int:
        return -1 if context < 0 else self._contexts[context].forward

    def _line(self, node: int) -> SourceLine | None:
        frame = self._stacks.frames[self._stacks.frame[node]]
        # a native frame without debug information is no line of anyone's
        return self._lines[frame.filename, frame.lineno] if frame.lineno > 0 else None


def _nodes(stacks: Stacks, is_one: Sequence[bool]) -> Sequence[int]:
    """Return the number of each node whose frame qualifies, -1 for others."""
    return [node if is_one[frame] else -1 for node, frame in enumerate(stacks.frame)]


def _innermost(stacks: Stacks, numbers: Sequence[int], *ends: Sequence[int]) -> Sequence[int]:
    """Return for each node the innermost number of its stack; nodes in ``ends`` end the search."""
    found: list[int] = []
    for node, (parent, number) in enumerate(zip(stacks.parent, numbers, strict=True)):
        is_end = number >= 0 or any(end[node] >= 0 for end in ends)
        found.append(number if is_end else _at(found, parent))
    return found


def _lines(stacks: Stacks) -> dict[tuple[str, int], SourceLine]:
    found: dict[tuple[str, int], SourceLine] = {}
    for frame in sorted(stacks.frames, key=lambda frame: frame.function.endswith(_WITHIN_LINE)):
        found.setdefault((frame.filename, frame.lineno), frame.line)
    return found


def _at(values: Sequence[int], number: int) -> int:
    return -1 if number < 0 else values[number]


def _first(*numbers: int) -> int:
    return next((number for number in numbers if number >= 0), -1)
