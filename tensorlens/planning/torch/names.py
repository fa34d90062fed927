"""Names of what the program's models and optimizers hold, for the blocks of a trace."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tensorlens.frameworks.base import Root
from tensorlens.frameworks.torch.census.names.owners import Owners
from tensorlens.heap.objects import without_tuples
from tensorlens.planning.torch.tracker import Tracker
from tensorlens.records.events import Label
from tensorlens.roles import ROLES


class BlockNames:
    """Gives blocks their names while they are there."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._looks = 0
        self._parameters: list[tuple[weakref.ref[Any], str]] = []
        self._handle = register_optimizer_step_pre_hook(self._stepping)

    def close(self) -> None:
        """Look no more."""
        self._handle.remove()

    def name_models_of(self, step: Any) -> Any:
        """Name what the models hold that a step was made with; return the step."""
        self.look()
        return step

    def look(self) -> None:
        """Name what models and optimizers hold now, and the gradients there are."""
        objects = without_tuples()
        found = [each for each in objects if issubclass(type(each), _KINDS)]
        modules = [each for each in found if isinstance(each, torch.nn.Module)]
        optimizers = [each for each in found if isinstance(each, torch.optim.Optimizer)]
        roots = _outermost(modules)
        owners = Owners([Root(root, None) for root in roots])
        owners.add_keras(objects)
        owners.add_found([], optimizers)
        del objects
        naming = owners.naming
        columns = zip(naming.items, naming.nodes, naming.roles, strict=True)
        named = [(item, naming.names[node], ROLES[role]) for item, node, role in columns]
        self._name(named)
        parameters = [(item, name) for item, name, role in named if role == "parameter"]
        self._parameters = [(weakref.ref(item), name) for item, name in parameters]
        self._name(_gradients(parameters))

    def _name(self, named: Iterable[tuple[Any, str, str]]) -> None:
        tracker = self._tracker
        for item, name, role in named:
            for part in _plain(item):
                row = tracker.row_of(part)
                if row is not None:
                    shape = tuple(int(size) for size in part.shape)
                    dtype = str(part.dtype).removeprefix("torch.")
                    tracker.name(row, Label(name, role, dtype, shape))

    def _stepping(self, *step: Any) -> None:
        # to look at all objects takes longer than the step; by the second one its state is there
        if self._looks < _LOOKS:
            self._looks += 1
            self.look()
            return
        living = ((parameter(), name) for parameter, name in self._parameters)
        self._name(_gradients([each for each in living if each[0] is not None]))


_KINDS = (torch.nn.Module, torch.optim.Optimizer)
_LOOKS = 4
"""How often everything is looked at when an optimizer steps: two steps of two optimizers."""


def _outermost(modules: list[Any]) -> list[Any]:
    inner = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inner and _holds(module)]


def _holds(module: Any) -> bool:
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def _gradients(parameters: list[tuple[Any, str]]) -> Iterable[tuple[Any, str, str]]:
    for item, name in parameters:
        if item.grad is not None:
            yield item.grad, f"{name}.grad", "gradient"


def _plain(tensor: Any) -> list[Any]:
    """Return the tensors that a tensor's bytes are in: a sharded one's own part."""
    local = getattr(tensor, "_local_tensor", None)
    return [tensor] if local is None else [local]
