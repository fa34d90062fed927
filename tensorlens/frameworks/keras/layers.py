"""Names of what layers, metrics and seed generators hold: variables by their path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorlens.frameworks.base import CensusRoot
from tensorlens.frameworks.keras import kinds
from tensorlens.heap.attributes import class_name, content_of, items_of, text_of
from tensorlens.records.names import Names
from tensorlens.roles import Role

Give = Callable[[Any, int, Role], None]
"""Names a variable: takes it, the node of its name and its role."""


@dataclass(frozen=True, slots=True)
class LayerVariable:
    """A variable and what holds it."""

    variable: Any
    role: Role
    layer: Any


class LayerNames:
    """Names the variables of given models first, then of all others."""

    def __init__(self, names: Names, give: Give) -> None:
        self._names, self._give = names, give
        self._used: dict[str, int] = {}
        self.given: dict[int, int] = {}
        """``id()`` of a variable to its node."""
        self.paths: dict[int, str] = {}
        """``id()`` of a layer to its path."""
        self.layer_of: dict[int, str] = {}
        """``id()`` of a variable to the path of the layer that has it."""

    def add_roots(self, roots: Sequence[CensusRoot]) -> None:
        """Name what given models hold, below the root's name where it has one."""
        for root in roots:
            if issubclass(type(root.item), kinds.layer()):
                prefix = None if root.name is None else self._names.text(root.name)
                for owned in variables_of(root.item):
                    self._name(owned, prefix)

    def add_layers(self, layers: Iterable[Any]) -> None:
        """Name what these layers hold themselves."""
        for layer in layers:
            self.note_path(layer)
            for owned in layer_variables(layer):
                self._name(owned, None)

    def add_states(self, metrics: Iterable[Any], generators: Iterable[Any]) -> None:
        """Name what metrics hold, and the states of generators of random numbers."""
        for owned in _states(metrics, generators, None):
            self._name(owned, None)

    def add_variables(self, variables: Iterable[Any]) -> None:
        """Name variables that nothing of the above holds."""
        for variable in variables:
            trainable = content_of(variable).get("_trainable") is True
            self._name(LayerVariable(variable, "parameter" if trainable else "buffer", None), None)

    def note_path(self, layer: Any) -> str:
        """Return the path of a layer, and keep it in :attr:`paths`."""
        return self.paths.setdefault(id(layer), layer_path(layer))

    def _name(self, owned: LayerVariable, prefix: int | None) -> None:
        variable = owned.variable
        if not issubclass(type(variable), kinds.variable()) or id(variable) in self.given:
            return
        if owned.layer is not None:
            self.layer_of[id(variable)] = self.note_path(owned.layer)
        content = content_of(variable)
        found = text_of(content.get("_path")) or text_of(content.get("_name"))
        text = found or "variable"
        if prefix is not None:
            node = self._names.attribute(prefix, text)
        else:
            count = self._used[text] = self._used.get(text, 0) + 1
            node = self._names.text(text if count == 1 else f"{text}#{count}")
        self.given[id(variable)] = node
        self._give(variable, node, owned.role)


def layer_variables(layer: Any) -> Iterator[LayerVariable]:
    """Give the variables that a layer holds itself."""
    content = content_of(layer)
    kept: Mapping[str, Role] = {
        "_trainable_variables": "parameter",
        "_non_trainable_variables": "buffer",
    }
    for attribute, role in kept.items():
        for variable in items_of(content.get(attribute)):
            yield LayerVariable(variable, role, layer)
    metrics, generators = (items_of(content.get(each)) for each in ("_metrics", "_seed_generators"))
    yield from _states(metrics, generators, layer)


def _states(
    metrics: Iterable[Any], generators: Iterable[Any], layer: Any
) -> Iterator[LayerVariable]:
    for generator in generators:
        yield LayerVariable(content_of(generator).get("state"), "buffer", layer)
    for metric in metrics:
        for variable in items_of(content_of(metric).get("_variables")):
            yield LayerVariable(variable, "buffer", layer)


def variables_of(model: Any) -> Iterator[LayerVariable]:
    """Give the variables of a model and of all layers in it, in Keras's own order."""
    for layer in layers_of(model):
        yield from layer_variables(layer)


def layers_of(*models: Any) -> Iterator[Any]:
    """Give models and all layers in them, each once, in Keras's own order."""
    waiting, seen = [*reversed(models)], set()
    while waiting:
        layer = waiting.pop()
        if id(layer) not in seen and issubclass(type(layer), kinds.layer()):
            seen.add(id(layer))
            yield layer
            waiting.extend(reversed(items_of(content_of(layer).get("_layers"))))


def layer_path(layer: Any) -> str:
    """Return the path of a layer within its model: ``sequential/dense``."""
    content = content_of(layer)
    path = text_of(content.get("_path"))
    if path:
        return path
    parent, name = text_of(content.get("_parent_path")), text_of(content.get("name"))
    return "/".join(filter(None, (parent, name))) or class_name(layer)
