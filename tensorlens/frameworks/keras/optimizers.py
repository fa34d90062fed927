"""Names of what optimizers hold: ``Adam.sequential/dense/kernel.momentum``.

What an optimizer keeps for each weight it keeps in lists, in the weights' order (keras 3,
``optimizers/base_optimizer.py``, ``add_optimizer_variables``).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tensorlens.frameworks.base import CensusRoot
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.layers import Give
from tensorlens.heap.attributes import class_name, content_of, items_of, text_of
from tensorlens.records.names import Names

_PLAIN = "optimizer"
"""Keras's own name for the one of each model."""


_WEIGHTS, _ALL = "_trainable_variables", "_variables"
_OF_ITSELF = re.compile(r"(variable(_\d+)?)?")
"""Name of a variable that was given none."""


class OptimizerNames:
    """Names the slots and counters of one optimizer after another.

    Args:
        names: takes the names.
        give: is told the node and the role of each variable.
        name_of: gives the node that a weight has been given, or None.
    """

    def __init__(self, names: Names, give: Give, name_of: Callable[[Any], int | None]) -> None:
        self._names, self._give, self._name_of = names, give, name_of
        self._used: dict[str, int] = {}
        self._called: dict[int, str] = {}
        self.anchors: dict[int, int] = {}
        """``id()`` of an optimizer to the node of its name."""
        self.given: set[int] = set()
        """``id()`` of the variables that were named."""

    def call(self, optimizers: Sequence[Any], holders: Iterable[Any]) -> None:
        """Note how the program calls each optimizer that is not the only one of its class.

        Args:
            optimizers: all there are.
            holders: models, whose attributes may be optimizers.
        """
        count = Counter(map(class_name, optimizers))
        wanted = {id(each) for each in optimizers if count[class_name(each)] > 1}
        if wanted:
            for name, value in _names(holders):
                if id(value) in wanted and name.strip("_") != _PLAIN:
                    self._called.setdefault(id(value), name)

    def add_all(self, found: Sequence[Any], roots: Sequence[CensusRoot]) -> None:
        """Name what the given optimizers hold, then what the others do."""
        for root in roots:
            if issubclass(type(root.item), kinds.optimizer()):
                self._add(root.item, root.name)
        inner = {id(content_of(each).get("inner_optimizer")) for each in found}
        # what another wraps comes after it
        for optimizer in sorted(found, key=lambda each: id(each) in inner):
            self._add(optimizer, None)

    def _add(self, optimizer: Any, name: str | None) -> None:
        if id(optimizer) in self.anchors:
            return
        text = name or self._called.get(id(optimizer)) or class_name(optimizer)
        count = self._used[text] = self._used.get(text, 0) + 1
        node = self._names.text(text if count == 1 else f"{text}#{count}")
        self.anchors[id(optimizer)] = node
        content = content_of(optimizer)
        weights = items_of(content.get(_WEIGHTS))
        for attribute, value in content.items():
            if attribute not in (_WEIGHTS, _ALL):
                for slot, weight in zip(items_of(value), weights, strict=False):
                    if issubclass(type(slot), kinds.variable()) and id(slot) not in self.given:
                        self._give_slot(slot, weight, node, attribute.strip("_"))
        attributes = {id(value): attribute.strip("_") for attribute, value in content.items()}
        for each in items_of(content.get(_ALL)):
            if id(each) not in self.given:
                text = _name(each)
                if _OF_ITSELF.fullmatch(text):
                    text = attributes.get(id(each), text or "variable")
                self._take(each, self._names.attribute(node, text))
        inner = content.get("inner_optimizer")
        if inner is not None:
            self._add(inner, None if name is None else f"{name}.{class_name(inner)}")

    def _give_slot(self, slot: Any, weight: Any, node: int, attribute: str) -> None:
        text = _name(slot)
        path = text_of(content_of(weight).get("_path"))
        prefix = path.replace("/", "_") + "_"
        # Keras names a slot after its weight, but for those whose shape is another
        kind = text.removeprefix(prefix) if text.startswith(prefix) else attribute
        named = self._name_of(weight)
        below = self._names.attribute(node, path if named is None else self._names[named])
        self._take(slot, self._names.attribute(below, kind))

    def _take(self, variable: Any, node: int) -> None:
        self.given.add(id(variable))
        self._give(variable, node, "optimizer")


def _name(variable: Any) -> str:
    return text_of(content_of(variable).get("_name"))


def _names(holders: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for holder in holders:
        yield from content_of(holder).items()
    main = getattr(sys.modules.get("__main__"), "__dict__", {})
    yield from ((name, value) for name, value in dict.copy(main).items() if type(name) is str)
