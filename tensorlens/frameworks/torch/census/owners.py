"""Names what models and optimizers hold, those given and those found in the heap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensorlens.frameworks.base import Root
from tensorlens.frameworks.heap.walk import roots_among
from tensorlens.frameworks.torch.census.modules import KINDS, ModulePaths, class_name
from tensorlens.frameworks.torch.census.naming import Naming
from tensorlens.frameworks.torch.census.optimizers import Optimizers
from tensorlens.records.names import Names


class Owners:
    """The names that models, optimizers and other roots give."""

    def __init__(self, roots: Sequence[Root]) -> None:
        self.naming = Naming(Names())
        self.modules = ModulePaths(self.naming)
        self.optimizers = Optimizers(self.naming)
        self.places: dict[int, str] = {}
        """Address of any other root to the name that its content goes on from."""
        self.home = ""
        """The class of the model, where there is one whose paths begin with nothing."""
        self.nameless: list[tuple[Any, int]] = []
        """Modules found in the heap with the node that stands for their name."""
        # optimizers speak of parameters by the names that modules gave
        self._add_modules([root for root in roots if issubclass(type(root.item), torch.nn.Module)])
        for root in roots:
            kind = type(root.item)
            if issubclass(kind, torch.optim.Optimizer):
                self.optimizers.add(root.item, root.name)
            elif issubclass(kind, torch.Tensor):
                node = self.naming.names.text(root.name or "tensor")
                self.naming.give(root.item, node, "other")
            elif not issubclass(kind, torch.nn.Module):
                self.places[id(root.item)] = root.name or class_name(root.item)

    def _add_modules(self, roots: Sequence[Root]) -> None:
        alone = sum(root.name is None for root in roots) == 1
        used: dict[str, int] = {}
        nodes = []
        for root in roots:
            text = root.name if root.name is not None else "" if alone else class_name(root.item)
            if not text:
                self.home = class_name(root.item)
            count = used[text] = used.get(text, 0) + 1
            nodes.append(self.naming.names.text(text + f"#{count}" * (count > 1)))
        self.modules.add([root.item for root in roots], nodes)

    def add_found(self, modules: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Name what the heap's other modules and optimizers hold."""
        known, names = self.modules.paths, self.naming.names
        unknown = [item for item in modules if id(item) not in known] if known else list(modules)
        roots = roots_among(unknown, KINDS)
        nodes = [names.text(class_name(module)) for module in roots]
        self.modules.add(roots, nodes, again=False)
        self.nameless.extend(zip(roots, nodes, strict=True))
        for optimizer in optimizers:
            self.optimizers.add(optimizer)

    def anchors(self) -> dict[int, int]:
        """Return address to node of the modules and optimizers that other tensors may be found in.

        They are anchors beside :attr:`places`.
        """
        owners = {**self.modules.paths, **self.optimizers.anchors}
        # of these the name is asked for: what they hold goes on from their own holder
        for module, _ in self.nameless:
            owners.pop(id(module), None)
        return owners

    def module_paths(self) -> dict[int, tuple[str, ...]]:
        """Return address of a parameter to the path of the module that has it."""
        names, owners = self.naming.names, self.modules.owners()
        parts = {node: tuple(filter(None, names[node].split("."))) for node in {*owners.values()}}
        return {address: parts[node] for address, node in owners.items()}
