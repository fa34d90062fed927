"""Names for the blocks of a trace: tensors of the program's models, optimizers and inputs."""

from __future__ import annotations

import inspect
import linecache
import re
import weakref
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tensorlens.frameworks.base import CensusRoot
from tensorlens.frameworks.torch.census.names.naming import outermost
from tensorlens.frameworks.torch.census.names.owners import Owners
from tensorlens.heap.objects import without_tuples
from tensorlens.records.logs.events import Label
from tensorlens.roles import ROLES
from tensorlens.user_code import is_foreign

if TYPE_CHECKING:
    from tensorlens.planning.torch.tracker import Tracker


_KINDS = (torch.nn.Module, torch.optim.Optimizer)
_NAMED_STEPS = 4
"""Optimizer steps before which all state is named anew; later ones name gradients only. Two
optimizers have their state by then."""


class BlockNames:
    """Names blocks of a trace while their tensors are alive."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._steps = 0
        self._models: list[weakref.ref[Any]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._parameters: list[tuple[weakref.ref[Any], str]] = []
        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def close(self) -> None:
        """Stop watching optimizers."""
        self._handle.remove()

    def name_all(self) -> None:
        """Find models and optimizers, and name their tensors and gradients."""
        objects = without_tuples()
        found = [each for each in objects if issubclass(type(each), _KINDS)]
        modules = [each for each in found if isinstance(each, torch.nn.Module)]
        optimizers = [each for each in found if isinstance(each, torch.optim.Optimizer)]
        models = [
            module
            for module in outermost(modules)
            if next(chain(module.parameters(), module.buffers()), None) is not None
        ]
        self._models = [weakref.ref(model) for model in models]
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._name_held(models, optimizers, objects)

    def _name_held(
        self, models: Sequence[Any], optimizers: Sequence[Any], objects: Sequence[Any] = ()
    ) -> None:
        """Name the tensors of models and optimizers, and of Keras's models among ``objects``."""
        naming = Owners([CensusRoot(model) for model in models], [*objects], [], optimizers).naming
        columns = zip(naming.items, naming.nodes, naming.roles, strict=True)
        named = [(item, naming.names[node], ROLES[role]) for item, node, role in columns]
        self._name(named)
        parameters = [(item, name) for item, name, role in named if role == "parameter"]
        self._parameters = [(weakref.ref(item), name) for item, name in parameters]
        self._name(_gradients(parameters))

    def _name(self, named: Iterable[tuple[Any, str, str]]) -> None:
        tracker = self._tracker
        for item, name, role in named:
            # a sharded tensor's bytes are in its local part
            part = getattr(item, "_local_tensor", item)
            row = tracker.row_of(part)
            if row is not None:
                tracker.name(row, label_of(part, name, role))

    def _before_step(self, optimizer: Any, *arguments: Any) -> None:
        if self._steps < _NAMED_STEPS:
            self._steps += 1
            optimizers = _alive(self._optimizers)
            if any(each is optimizer for each in optimizers):
                self._name_held(_alive(self._models), optimizers)
            else:
                self.name_all()
            return
        alive = ((parameter(), name) for parameter, name in self._parameters)
        self._name(_gradients([each for each in alive if each[0] is not None]))


def _alive(references: Sequence[weakref.ref[Any]]) -> list[Any]:
    return [item for reference in references if (item := reference()) is not None]


def _gradients(parameters: list[tuple[Any, str]]) -> Iterable[tuple[Any, str, str]]:
    for item, name in parameters:
        if item.grad is not None:
            yield item.grad, f"{name}.grad", "gradient"


def label_of(tensor: Any, name: str, role: str) -> Label:
    """Return the label of a tensor's block."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Label(name, role, dtype, tuple(int(size) for size in tensor.shape))


_MAX_LENGTH = 60
"""Characters of an expression that is a name."""
_FOLDERS_OF_STATE = tuple(str(Path(torch.__file__).parent / name) for name in ("nn", "optim"))
"""Folders of torch whose tensors are weights and states."""
_MOVES = "to|cuda|cpu|pin_memory|clone|contiguous|float|half|long"

INPUT_OPERATORS = frozenset(
    f"aten::{name}"
    for name in (
        *("_to_copy", "clone", "copy_", "lift_fresh", "empty", "empty_strided", "_pin_memory"),
        *("randn", "rand", "randint", "randperm", "zeros", "ones", "full", "arange", "normal_"),
        *("stack", "cat", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like"),
        *("randn_like", "rand_like", "randint_like", "full_like", "eye", "linspace"),
    )
)
"""Operators whose results may be inputs: they copy, collate or make data."""


class InputNames:
    """Names of inputs: expressions of the user's program."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str | None] = {}
        self._code: list[CodeType] = []
        """Code objects, kept alive so that addresses stay unique."""

    def name(self, frame: FrameType | None) -> str | None:
        """Return the assigned variable, or ``images`` for ``images.cuda()``, else the expression.

        None in an ``__init__``, which makes weights, and in torch's layers and optimizers.
        """
        while frame is not None and is_foreign(frame.f_code.co_filename):
            code = frame.f_code
            if code.co_name == "__init__" or code.co_filename.startswith(_FOLDERS_OF_STATE):
                return None
            frame = frame.f_back
        if frame is None or frame.f_code.co_name == "__init__":
            return None
        key = id(frame.f_code), frame.f_lasti
        if key not in self._known:
            self._code.append(frame.f_code)
            self._known[key] = _source_text(frame)
        return self._known[key]


def _source_text(frame: FrameType) -> str | None:
    position = inspect.getframeinfo(frame, context=0).positions
    if position is None or None in position:
        return None
    first, last, begin, end = position
    assert first and last and begin is not None and end is not None
    lines = linecache.getlines(frame.f_code.co_filename)[first - 1 : last]
    if not lines:
        return None
    # columns are bytes of UTF-8; the last line is cut first, as it may be the only one
    cut = [line.encode() for line in lines]
    cut[-1] = cut[-1][:end]
    cut[0] = cut[0][begin:]
    text = b"".join(cut).decode("utf-8", "replace")
    statement = "".join(lines).strip()
    assigned = re.fullmatch(rf"([\w.]+)\s*=\s*{re.escape(text)}(\s*#.*)?", statement)
    moved = re.fullmatch(rf"([\w.]+(\[[^\]]*\]|\([^()]*\))*)\.({_MOVES})\(.*\)", text, re.DOTALL)
    for found in (assigned, moved):
        if found is not None:
            return found[1]
    return " ".join(text.split())[:_MAX_LENGTH]
