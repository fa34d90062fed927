"""Names of what Keras's layers, metrics and seed generators hold: variables by their path.

Nothing of the layers is run: their variables are read from the lists that Keras keeps them in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorlens.frameworks.base import Root
from tensorlens.frameworks.tensorflow.census import kinds
from tensorlens.frameworks.tensorflow.census.rows import Heap
from tensorlens.records.names import Names

Give = Callable[[Any, int, str], None]
"""Names a variable: takes it, the node of its name and its role."""

_TRAINABLE, _OTHERS = "_trainable_variables", "_non_trainable_variables"


@dataclass(frozen=True, slots=True)
class Owned:
    """A variable and what holds it."""

    variable: Any
    role: str
    layer: Any


class KerasNames:
    """Names the variables of given models first, then of all others in the heap."""

    def __init__(self, heap: Heap, names: Names, give: Give) -> None:
        self._heap, self._names, self._give = heap, names, give
        self._given: set[int] = set()
        self._used: dict[str, int] = {}
        self.paths: dict[int, str] = {}
        """Address of a layer to its path."""
        self.layer_of: dict[int, str] = {}
        """Address of a variable to the path of the layer that has it."""

    def add_roots(self, roots: Sequence[Root]) -> None:
        """Name what given models hold, below the root's name where it has one."""
        for root in roots:
            if not issubclass(type(root.item), kinds.layer()):
                continue
            prefix = None if root.name is None else self._names.text(root.name)
            for owned in walk(root.item):
                self._name(owned, prefix)

    def add_found(self) -> None:
        """Name what the heap's other layers, metrics and seed generators hold."""
        for layer in self._heap.layers:
            self._note_path(layer)
            for owned in own(layer):
                self._name(owned, None)
        for metric in self._heap.metrics:
            for variable in kinds.items_of(kinds.content_of(metric).get("_variables")):
                self._name(Owned(variable, "buffer", None), None)
        for generator in self._heap.seed_generators:
            state = kinds.content_of(generator).get("state")
            self._name(Owned(state, "buffer", None), None)

    def add_rest(self) -> None:
        """Name Keras's variables that nothing of the above holds."""
        for variable in self._heap.keras_variables:
            trainable = kinds.content_of(variable).get("_trainable") is True
            role = "parameter" if trainable else "buffer"
            self._name(Owned(variable, role, None), None)

    def _note_path(self, layer: Any) -> None:
        if id(layer) not in self.paths:
            self.paths[id(layer)] = path_of(layer)

    def _name(self, owned: Owned, prefix: int | None) -> None:
        variable = owned.variable
        if not issubclass(type(variable), kinds.keras_variable()) or id(variable) in self._given:
            return
        self._given.add(id(variable))
        if owned.layer is not None:
            self._note_path(owned.layer)
            self.layer_of[id(variable)] = self.paths[id(owned.layer)]
        content = kinds.content_of(variable)
        text = _text(content.get("_path")) or _text(content.get("_name")) or "variable"
        if prefix is not None:
            self._give(variable, self._names.attribute(prefix, text), owned.role)
            return
        count = self._used[text] = self._used.get(text, 0) + 1
        node = self._names.text(text if count == 1 else f"{text}#{count}")
        self._give(variable, node, owned.role)


def own(layer: Any) -> Iterator[Owned]:
    """Give the variables that a layer holds itself."""
    content = kinds.content_of(layer)
    for attribute, role in ((_TRAINABLE, "parameter"), (_OTHERS, "buffer")):
        for variable in kinds.items_of(content.get(attribute)):
            yield Owned(variable, role, layer)
    for generator in kinds.items_of(content.get("_seed_generators")):
        yield Owned(kinds.content_of(generator).get("state"), "buffer", layer)
    for metric in kinds.items_of(content.get("_metrics")):
        for variable in kinds.items_of(kinds.content_of(metric).get("_variables")):
            yield Owned(variable, "buffer", layer)


def walk(model: Any) -> Iterator[Owned]:
    """Give the variables of a model and of all layers in it, in Keras's own order."""
    waiting, seen = [model], set()
    while waiting:
        layer = waiting.pop()
        if id(layer) in seen or not issubclass(type(layer), kinds.layer()):
            continue
        seen.add(id(layer))
        yield from own(layer)
        waiting.extend(reversed(kinds.items_of(kinds.content_of(layer).get("_layers"))))


def trainable(model: Any) -> list[Any]:
    """Return the variables that ``model.trainable_variables`` gives, each once, in that order."""
    found = {id(owned.variable): owned.variable for owned in walk(model)}
    return [
        variable
        for variable in found.values()
        if kinds.content_of(variable).get("_trainable") is True
    ]


def path_of(layer: Any) -> str:
    """Return the path of a layer within its model: ``sequential/dense``."""
    content = kinds.content_of(layer)
    path = _text(content.get("_path"))
    if path:
        return path
    parent, name = _text(content.get("_parent_path")), _text(content.get("name"))
    return "/".join(filter(None, (parent, name))) or kinds.class_name(layer)


def _text(value: Any) -> str:
    return value if type(value) is str else ""
