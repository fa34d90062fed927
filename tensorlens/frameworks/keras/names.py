"""Names of what Keras's objects hold, the same on every backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorlens.frameworks.base import CensusRoot
from tensorlens.frameworks.keras import kinds
from tensorlens.heap.attributes import class_name, content_of, items_of, text_of
from tensorlens.records.names import DistinctTexts, Names
from tensorlens.roles import Role

NameVariable = Callable[[Any, int, Role], None]
"""Names a variable; the arguments are the variable, the node of its name and its role."""


@dataclass(frozen=True, slots=True)
class LayerVariable:
    """A variable, its role and the layer that holds it."""

    variable: Any
    role: Role
    layer: Any


class LayerNames:
    """Names the variables of layers: those of given models first."""

    def __init__(self, names: Names, name_variable: NameVariable) -> None:
        self._names, self._name_variable = names, name_variable
        self._distinct = DistinctTexts()
        self.named: dict[int, int] = {}
        """Node of a variable's name, by ``id()``."""
        self.paths: dict[int, str] = {}
        """Path of a layer by ``id()``."""
        self.layer_of: dict[int, str] = {}
        """Path of a variable's layer by ``id()`` of the variable."""

    def add_roots(self, roots: Sequence[CensusRoot]) -> None:
        """Name the variables of given models, below the root's name if it has one."""
        for root in roots:
            if issubclass(type(root.item), kinds.layer()):
                prefix = None if root.name is None else self._names.text(root.name)
                for owned in variables_of(root.item):
                    self._name(owned, prefix)

    def add_layers(self, layers: Iterable[Any]) -> None:
        """Name the variables that layers hold themselves."""
        for layer in layers:
            self.note_path(layer)
            for owned in layer_variables(layer):
                self._name(owned, None)

    def add_variables(self, variables: Iterable[Any]) -> None:
        """Name variables that no layer holds."""
        for variable in variables:
            trainable = content_of(variable).get("_trainable") is True
            self._name(LayerVariable(variable, "parameter" if trainable else "buffer", None), None)

    def note_path(self, layer: Any) -> str:
        """Return the path of a layer and store it in :attr:`paths`."""
        return self.paths.setdefault(id(layer), layer_path(layer))

    def _name(self, owned: LayerVariable, prefix: int | None) -> None:
        variable = owned.variable
        if not issubclass(type(variable), kinds.variable()) or id(variable) in self.named:
            return
        if owned.layer is not None:
            self.layer_of[id(variable)] = self.note_path(owned.layer)
        content = content_of(variable)
        found = text_of(content.get("_path")) or text_of(content.get("_name"))
        text = found or "variable"
        if prefix is not None:
            node = self._names.attribute(prefix, text)
        else:
            node = self._names.text(self._distinct.next(text))
        self.named[id(variable)] = node
        self._name_variable(variable, node, owned.role)


def layer_variables(layer: Any) -> Iterator[LayerVariable]:
    """Yield the variables that a layer holds itself."""
    content = content_of(layer)
    kept: Mapping[str, Role] = {
        "_trainable_variables": "parameter",
        "_non_trainable_variables": "buffer",
    }
    for attribute, role in kept.items():
        for variable in items_of(content.get(attribute)):
            yield LayerVariable(variable, role, layer)
    for generator in items_of(content.get("_seed_generators")):
        yield LayerVariable(content_of(generator).get("state"), "buffer", layer)
    for metric in items_of(content.get("_metrics")):
        for variable in items_of(content_of(metric).get("_variables")):
            yield LayerVariable(variable, "buffer", layer)


def variables_of(model: Any) -> Iterator[LayerVariable]:
    """Yield the variables of a model and of all layers in it, in Keras's order."""
    for layer in layers_of(model):
        yield from layer_variables(layer)


def layers_of(*models: Any) -> Iterator[Any]:
    """Yield models and all layers in them, each once, in Keras's order."""
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


_WEIGHTS, _ALL = "_trainable_variables", "_variables"
_DEFAULT_NAME = re.compile(r"(variable(_\d+)?)?")
"""Default name of a variable."""


class OptimizerNames:
    """Names the slots and counters of optimizers.

    Args:
        names: stores the names.
        name_variable: called with each variable, the node of its name and its role.
        name_of: returns the node of a weight's name; None if it has none.
    """

    def __init__(
        self, names: Names, name_variable: NameVariable, name_of: Callable[[Any], int | None]
    ) -> None:
        self._names, self._name_variable, self._name_of = names, name_variable, name_of
        self._distinct = DistinctTexts()
        self.anchors: dict[int, int] = {}
        """Node of an optimizer's name by ``id()``."""
        self.named: set[int] = set()
        """``id()`` of each named variable."""

    def add_all(self, found: Sequence[Any], roots: Sequence[CensusRoot]) -> None:
        """Name the variables of optimizers among the roots, then those of the others."""
        for root in roots:
            if issubclass(type(root.item), kinds.optimizer()):
                self._add(root.item, root.name)
        inner = {id(content_of(each).get("inner_optimizer")) for each in found}
        # an optimizer comes before the one that it wraps
        for optimizer in sorted(found, key=lambda each: id(each) in inner):
            self._add(optimizer, None)

    def _add(self, optimizer: Any, name: str | None) -> None:
        if id(optimizer) in self.anchors:
            return
        node = self._names.text(self._distinct.next(name or class_name(optimizer)))
        self.anchors[id(optimizer)] = node
        content = content_of(optimizer)
        weights = items_of(content.get(_WEIGHTS))
        for attribute, value in content.items():
            if attribute not in (_WEIGHTS, _ALL):
                for slot, weight in zip(items_of(value), weights, strict=False):
                    if issubclass(type(slot), kinds.variable()) and id(slot) not in self.named:
                        self._name_slot(slot, weight, node, attribute.strip("_"))
        attributes = {id(value): attribute.strip("_") for attribute, value in content.items()}
        for each in items_of(content.get(_ALL)):
            if id(each) not in self.named:
                text = _variable_name(each)
                if _DEFAULT_NAME.fullmatch(text):
                    text = attributes.get(id(each), text or "variable")
                self._name(each, self._names.attribute(node, text))
        inner = content.get("inner_optimizer")
        if inner is not None:
            self._add(inner, None if name is None else f"{name}.{class_name(inner)}")

    def _name_slot(self, slot: Any, weight: Any, node: int, attribute: str) -> None:
        text = _variable_name(slot)
        path = text_of(content_of(weight).get("_path"))
        prefix = path.replace("/", "_") + "_"
        # Keras names a slot after its weight if it has the weight's shape
        kind = text.removeprefix(prefix) if text.startswith(prefix) else attribute
        weight_node = self._name_of(weight)
        text = path if weight_node is None else self._names[weight_node]
        self._name(slot, self._names.attribute(self._names.attribute(node, text), kind))

    def _name(self, variable: Any, node: int) -> None:
        self.named.add(id(variable))
        self._name_variable(variable, node, "optimizer")


def _variable_name(variable: Any) -> str:
    return text_of(content_of(variable).get("_name"))
