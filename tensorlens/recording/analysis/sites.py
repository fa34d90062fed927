"""Sites of events: phase, line, module and purpose by the stack and the context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

from tensorlens.records.logs.events import Context, EventLog, Phase
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

_WITHIN_LINE = ("<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
"""Names of functions that begin within a line of another one."""
_NOTHING = Context()


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """What stack and context tell of an event.

    The phase that the recorder stated counts first. Otherwise the stack decides, from the outermost
    frame: a module's call is forward, unless backward runs already (recomputation); an optimizer's
    step is optimizer, also in a hook of backward; the autograd engine is backward. A running node
    means backward, unless an optimizer steps; making a node outside of any phase means forward.

    In backward a block is charged to the innermost user frame that the autograd engine called
    (recomputed checkpoints, hooks, custom backward functions), else to the line that made the
    running node, else to the line that ran backward. Modules are found the same way. A stack
    without a user frame is charged to its innermost Python frame, else to its innermost C++ frame.

    If the user's frame calls a library's model, there is a second line: the innermost of the
    model's own code. Comprehensions and lambdas go by the function around them.
    """

    stack: int
    """Number of the stack; -1 for none."""
    context: Context
    """The operator, node and thread that ran."""
    phase: Phase
    born: SourceLine | None
    """The innermost line of the user's code; None if unknown."""
    node: int
    """The stack node that a block is charged to, or -1."""
    charged: SourceLine | None
    """Its line."""
    model: SourceLine | None
    """The line of a library's model that this line calls, if any."""
    module: str | None
    """Path of the module that a block belongs to; None outside of modules."""
    purpose: Purpose | None
    """Purpose of the memory, if a known function allocated it."""

    @property
    def computed_again(self) -> bool:
        """Whether an operator made an autograd node in backward: it recomputes forward."""
        return self.context.grad and self.phase == "backward"


class Sites(dict[tuple[int, int], Site]):
    """The site of each stack and context of a log, by their numbers; there are few.

    Equal numbers have the same :class:`Site`.
    """

    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._stacks = stacks = log.stacks
        self._contexts = log.contexts
        begun = [landmark(frame) for frame in stacks.frames]
        # by the number of a stack; at their ends is what holds for no stack, -1
        self._lines = _lines(stacks)
        self._states = _states(stacks, begun)
        self._purposes = _purposes(stacks, begun)
        self._user = _innermost(stacks, [frame.user for frame in stacks.frames])
        self._python = _innermost(stacks, [frame.is_python for frame in stacks.frames])
        self._engine = _innermost(stacks, [phase == "backward" for phase in begun])
        self._module = _along(
            stacks, -1, lambda node, outer: node if stacks.module[node] >= 0 else outer
        )
        models = _innermost(stacks, [frame.model for frame in stacks.frames])
        # a user's frame inside a library's model hides the model's line
        pairs = zip(models, self._user, strict=True)
        self._model = [model if model > user else -1 for model, user in pairs]

    def __missing__(self, key: tuple[int, int]) -> Site:
        site = self[key] = self._site(*key)
        return site

    def callers(self, site: Site) -> tuple[SourceLine, ...]:
        """Return the line that a block is charged to and the user's lines above it, each once.

        Callers of the autograd engine do not count for a line that the engine called.
        """
        nodes = takewhile(lambda node: self._engine[node] != node, self._stacks.nodes(site.node))
        lines = (self._lines[node] for node in nodes if self._user[node] == node)
        return tuple(dict.fromkeys(filter(None, (site.charged, *lines))))

    def _site(self, stack: int, number: int) -> Site:
        context = _NOTHING if number < 0 else self._contexts[number]
        phase = _phase(self._states[stack], context)
        user, python, model = self._user[stack], self._python[stack], self._model[stack]
        module = self._module[stack]
        born = node = _first(user, python, stack)
        if phase == "backward":
            forward, engine = context.forward, self._engine[stack]
            inside = module if module >= engine else -1
            module = _first(inside, self._module[forward], module)
            # a recorder that states the phase may see no engine: then no frame is inside of it
            if engine < 0 and context.phase is not None:
                engine = len(self._stacks)
            inside = user if user >= engine else -1
            model = model if model >= engine else -1
            if inside < 0 and model < 0:
                model = self._model[forward]
            users = inside, self._user[forward], user
            node = _first(*users, self._python[forward], python, forward, stack)
        path = context.module
        if path is None and module >= 0:
            path = self._stacks.modules[self._stacks.module[module]]
        return Site(
            stack=stack,
            context=context,
            phase=phase,
            born=self._lines[born],
            node=node,
            charged=self._lines[node],
            model=self._lines[model],
            module=path,
            purpose=self._purposes[stack],
        )


def _phase(state: Phase, context: Context) -> Phase:
    """Return the phase of a context in a state of the stack."""
    if context.phase is not None:
        return context.phase
    if context.node is not None and state != "optimizer":
        return "backward"
    return "forward" if context.grad and state == "other" else state


def _states(stacks: Stacks, begun: Sequence[Phase | None]) -> Sequence[Phase]:
    """Return the phase of each stack, given what each frame begins."""

    def state(node: int, outer: Phase) -> Phase:
        begins = begun[stacks.frame[node]]
        again = begins == "forward" and outer == "backward"
        return outer if begins is None or again else begins

    return _along(stacks, "other", state)


def _purposes(stacks: Stacks, begun: Sequence[Phase | None]) -> Sequence[Purpose | None]:
    """Return the purpose of memory allocated on each stack; None if no known function is on it."""
    called = [
        None if frame.user else _known(frame, _PURPOSES_WITH_CALLEES) for frame in stacks.frames
    ]
    itself = [_known(frame, _PURPOSES_ALONE) for frame in stacks.frames]
    ends = [
        frame.user or phase is not None for frame, phase in zip(stacks.frames, begun, strict=True)
    ]

    def inherited(node: int, outer: Purpose | None) -> Purpose | None:
        frame = stacks.frame[node]
        return called[frame] or (None if ends[frame] else outer)

    purposes = _along(stacks, None, inherited)
    for node, frame in enumerate(stacks.frame):
        purposes[node] = purposes[node] or itself[frame]
    return purposes


def _innermost(stacks: Stacks, is_one: Sequence[bool]) -> Sequence[int]:
    """Return the innermost node of each stack whose frame qualifies; -1 for none."""
    return _along(stacks, -1, lambda node, outer: node if is_one[stacks.frame[node]] else outer)


def _along(stacks: Stacks, none: _T, of: Callable[[int, _T], _T]) -> list[_T]:
    """Return a value for each stack: ``of`` its node and the value of the stack outside of it.

    The last item is ``none``, the value of no stack.
    """
    found = [none] * (len(stacks) + 1)
    for node, parent in enumerate(stacks.parent):
        found[node] = of(node, found[parent])
    return found


def _lines(stacks: Stacks) -> Sequence[SourceLine | None]:
    """Return the line of each stack's innermost frame."""
    lines: dict[tuple[str, int], SourceLine] = {}
    for frame in sorted(stacks.frames, key=lambda frame: frame.function.endswith(_WITHIN_LINE)):
        # a native frame without debug information is no line of anyone's
        if frame.lineno > 0:
            lines.setdefault((frame.filename, frame.lineno), frame.line)
    frames = map(stacks.frames.__getitem__, stacks.frame)
    return [*(lines.get((frame.filename, frame.lineno)) for frame in frames), None]


def _first(*numbers: int) -> int:
    return next((number for number in numbers if number >= 0), -1)
