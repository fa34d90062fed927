"""Names of Keras's layers and optimizers with torch as the backend.

A layer is a module that holds all its weights again in ``_torch_params``; Keras's own paths are
better names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from tensorlens.frameworks.base import CensusRoot
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.names import LayerNames, OptimizerNames, layers_of
from tensorlens.frameworks.torch.census.names.naming import ModulePaths, Naming, entries, first_seen
from tensorlens.heap import select
from tensorlens.heap.attributes import content_of
from tensorlens.roles import Role


def is_in_use() -> bool:
    """Return whether Keras was imported, with torch as its backend."""
    return issubclass(kinds.layer(), torch.nn.Module)


class KerasOwners:
    """Names from Keras's objects; they come before all others."""

    def __init__(self, naming: Naming, modules: ModulePaths) -> None:
        self._naming, self._modules = naming, modules
        self._roots: Sequence[CensusRoot] = ()
        self._layers = LayerNames(naming.names, self._add_value)
        self._optimizers = OptimizerNames(
            naming.names, self._add_value, lambda variable: self._layers.named.get(id(variable))
        )
        self.of_weights: dict[int, tuple[str, ...]] = {}
        """Address of a weight to the parts of its layer's path."""
        self.values: set[int] = set()
        """Addresses of the variables' values."""

    @property
    def anchors(self) -> dict[int, int]:
        """Address of an optimizer to the node of its name."""
        return self._optimizers.anchors

    def add_roots(self, roots: Sequence[CensusRoot]) -> list[CensusRoot]:
        """Name what Keras's models, and layers in torch's modules, hold; return the other roots."""
        self._roots = [root for root in roots if _is_keras(root.item)]
        others = [root for root in roots if not _is_keras(root.item)]
        for root in self._roots:
            self._note_layers(layers_of(root.item))
        self._layers.add_roots(self._roots)
        for layer in _layers_in([root.item for root in others]):
            layers = [*layers_of(layer)]
            self._note_layers(layers)
            self._layers.add_layers(layers)
        return others

    def add_found(self, objects: list[Any]) -> None:
        """Name what the heap's other layers and optimizers hold, and then free variables."""
        found = select(objects, (kinds.layer(), kinds.optimizer(), kinds.variable()))
        layers, optimizers, variables = map(first_seen.ordered, found[:3])
        self._note_layers(layers)
        self._layers.add_layers(layers)
        self._optimizers.add_all(optimizers, self._roots)
        slots = self._optimizers.named
        self._layers.add_variables(each for each in variables if id(each) not in slots)

    def without_keras(self, modules: Iterable[Any]) -> list[Any]:
        """Return the modules that are neither layers nor their ``_torch_params``."""
        modules = list(modules)
        layers = [each for each in modules if is_layer(each)]
        of_keras = {id(each) for each in layers}
        of_keras.update(
            id(held)
            for layer in layers
            for name, held in _submodules(layer)
            if name == "_torch_params"
        )
        return [each for each in modules if id(each) not in of_keras]

    def _note_layers(self, layers: Iterable[Any]) -> None:
        """Note the paths of layers, and name what the torch modules in them hold."""
        for layer in layers:
            if id(layer) in self._modules.paths:
                continue
            node = self._naming.names.text(self._layers.note_path(layer))
            self._modules.note(layer, node)
            for name, held in _submodules(layer):
                if name != "_torch_params" and not is_layer(held):
                    below = self._naming.names.attribute(node, name)
                    self._modules.add([held], [below], keeps_second=False)

    def _add_value(self, variable: Any, node: int, role: Role) -> None:
        value = content_of(variable).get("_value")
        if issubclass(type(value), torch.Tensor):
            self._naming.add(value, node, role, keeps_second=False)
            self.values.add(id(value))
            path = self._layers.layer_of.get(id(variable))
            if path is not None:
                self.of_weights[id(value)] = parts_of(path)


def is_layer(item: Any) -> bool:
    """Return whether an object is a layer or a model of Keras."""
    return issubclass(type(item), kinds.layer())


def _is_keras(item: Any) -> bool:
    return is_layer(item) or issubclass(type(item), kinds.optimizer())


def _layers_in(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the layers that modules of torch hold."""
    waiting, seen = list(items), set()
    while waiting:
        item = waiting.pop()
        if id(item) not in seen:
            seen.add(id(item))
            if is_layer(item):
                yield item
            elif issubclass(type(item), torch.nn.Module):
                waiting += (held for _, held in reversed(_submodules(item)))


def parts_of(path: str) -> tuple[str, ...]:
    """Split ``sequential/dense`` into ``("sequential", "/dense")``, for :func:`joined`."""
    first, *others = path.split("/")
    return (first, *(f"/{part}" for part in others))


def joined(parts: Sequence[str]) -> str:
    """Join the parts of a path; those of torch's modules with dots."""
    return "".join(
        chain(parts[:1], (part if part.startswith("/") else f".{part}" for part in parts[1:]))
    )


def _submodules(layer: Any) -> list[tuple[str, Any]]:
    return [
        (name, each)
        for name, each in entries(content_of(layer).get("_modules"))
        if type(name) is str and issubclass(type(each), torch.nn.Module)
    ]
