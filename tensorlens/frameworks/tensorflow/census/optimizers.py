"""Names of what optimizers hold: ``Adam.dense/kernel.momentum``.

What an optimizer keeps for each weight it keeps in lists, in the weights' order; no method of it
is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorlens.frameworks.base import Root
from tensorlens.frameworks.tensorflow.census import kinds
from tensorlens.frameworks.tensorflow.census.given import Given
from tensorlens.frameworks.tensorflow.census.rows import Heap
from tensorlens.records.names import Names

_OF_MODEL = "_trainable_variables"
_ALL = "_variables"


class OptimizerNames:
    """Names the slots and counters of one optimizer after another."""

    def __init__(self, names: Names, given: Given) -> None:
        self._names, self._give, self._name_of = names, given.give, given.node_of
        self._used: dict[str, int] = {}
        self.anchors: dict[int, int] = {}
        """Address of an optimizer to the node of its name."""

    @property
    def texts(self) -> set[int]:
        """The numbers of the texts that names of what optimizers hold begin with."""
        return {self._names.values[node] for node in self.anchors.values()}

    def add_all(self, heap: Heap, roots: Sequence[Root]) -> None:
        """Name what the given optimizers hold, then what those of the heap do."""
        for root in roots:
            if issubclass(type(root.item), kinds.optimizer()):
                self._add(root.item, root.name)
            elif issubclass(type(root.item), kinds.legacy_optimizer()):
                self._add_legacy(root.item, root.name)
        inner = {id(kinds.content_of(each).get("inner_optimizer")) for each in heap.optimizers}
        # what another wraps comes after it
        for optimizer in sorted(heap.optimizers, key=lambda each: id(each) in inner):
            self._add(optimizer, None)
        for optimizer in heap.legacy_optimizers:
            self._add_legacy(optimizer, None)

    def _begin(self, optimizer: Any, name: str | None) -> int | None:
        if id(optimizer) in self.anchors:
            return None
        text = name or kinds.class_name(optimizer)
        count = self._used[text] = self._used.get(text, 0) + 1
        node = self._names.text(text if count == 1 else f"{text}#{count}")
        self.anchors[id(optimizer)] = node
        return node

    def _add(self, optimizer: Any, name: str | None) -> None:
        node = self._begin(optimizer, name)
        if node is None:
            return
        content = kinds.content_of(optimizer)
        weights = kinds.items_of(content.get(_OF_MODEL))
        for attribute, value in content.items():
            if attribute in (_OF_MODEL, _ALL):
                continue
            if issubclass(type(value), kinds.keras_variable()):
                text = _name(value)
                # Keras calls one so that was given no name
                known = text and not text.startswith("variable")
                below = self._names.attribute(node, text if known else attribute.strip("_"))
                self._give(value, below, "optimizer")
            for place, slot in enumerate(kinds.items_of(value)):
                if issubclass(type(slot), kinds.keras_variable()) and place < len(weights):
                    self._give_slot(slot, weights[place], node, attribute.strip("_"))
        for each in kinds.items_of(content.get(_ALL)):
            self._give(each, self._names.attribute(node, _name(each) or "variable"), "optimizer")
        inner = content.get("inner_optimizer")
        if inner is not None:
            self._add(inner, None if name is None else f"{name}.{kinds.class_name(inner)}")

    def _give_slot(self, slot: Any, weight: Any, node: int, attribute: str) -> None:
        text, path = _name(slot), str(kinds.content_of(weight).get("_path"))
        prefix = path.replace("/", "_") + "_"
        # Keras names a slot after its weight, but for those whose shape is another
        kind = text.removeprefix(prefix) if text.startswith(prefix) else attribute
        self._give(slot, self._names.attribute(self._below(node, weight, path), kind), "optimizer")

    def _below(self, node: int, weight: Any, path: str) -> int:
        named = self._name_of(weight)
        text = path if named is None else self._names[named]
        return self._names.attribute(node, text)

    def _add_legacy(self, optimizer: Any, name: str | None) -> None:
        """Name the slots of an optimizer of ``tf.compat.v1.train``."""
        node = self._begin(optimizer, name)
        if node is None:
            return
        content = kinds.content_of(optimizer)
        for kind, slots in _entries(content.get("_slots")):
            for slot in (value for _, value in _entries(slots)):
                path = str(kinds.content_of(slot).get("_handle_name", "")).partition(":")[0]
                # named weight/Momentum
                below = self._names.attribute(node, path.rpartition("/")[0] or path)
                self._give(slot, self._names.attribute(below, str(kind)), "optimizer")
        for key, value in _entries(content.get("_non_slot_dict")):
            text = str(key[0]) if type(key) is tuple and key else str(key)
            self._give(value, self._names.attribute(node, text), "optimizer")


def _name(variable: Any) -> str:
    name = kinds.content_of(variable).get("_name")
    return name if type(name) is str else ""


def _entries(value: Any) -> list[tuple[Any, Any]]:
    return list(dict.items(value)) if issubclass(type(value), dict) else []
