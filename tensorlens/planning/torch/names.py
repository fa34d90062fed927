"""Names for the blocks of a trace: tensors of the program's models and optimizers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tensorlens.frameworks.base import CensusRoot
from tensorlens.frameworks.torch.census.names.modules import outermost
from tensorlens.frameworks.torch.census.names.owners import Owners
from tensorlens.heap.objects import without_tuples
from tensorlens.planning.torch.tracker import Tracker, label_of
from tensorlens.roles import ROLES


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
        self, models: Sequence[Any], optimizers: Sequence[Any], objects: list[Any] | None = None
    ) -> None:
        """Name the tensors of models and optimizers, and of Keras's models among ``objects``."""
        owners = Owners([CensusRoot(model, None) for model in models])
        if objects is not None:
            owners.add_keras(objects)
        owners.add_found([], optimizers)
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


_KINDS = (torch.nn.Module, torch.optim.Optimizer)
_NAMED_STEPS = 4
"""Optimizer steps before which all state is named anew; later ones name gradients only. Two
optimizers have their state by then."""


def _alive(references: Sequence[weakref.ref[Any]]) -> list[Any]:
    return [item for reference in references if (item := reference()) is not None]


def _gradients(parameters: list[tuple[Any, str]]) -> Iterable[tuple[Any, str, str]]:
    for item, name in parameters:
        if item.grad is not None:
            yield item.grad, f"{name}.grad", "gradient"
