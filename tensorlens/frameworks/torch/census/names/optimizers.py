"""Names of what optimizers hold: ``Adam.fc1.weight.exp_avg``.

The state is read as the plain dicts it is made of; no method of the optimizer is run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tensorlens.frameworks.torch.census.names.modules import instance_dict
from tensorlens.frameworks.torch.census.names.naming import Naming
from tensorlens.heap.attributes import class_name
from tensorlens.roles import ROLES

_DEEPEST = 16
_OPTIMIZER = ROLES.index("optimizer")
_NOTHING = (int, float, bool, str, type(None))


class OptimizerNaming:
    """Names the state and the otherwise unknown parameters of one optimizer after another."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._used: dict[str, int] = {}
        self.anchors: dict[int, int] = {}
        """Address of an optimizer to the node of its name."""

    def add(self, optimizer: Any, name: str | None = None) -> None:
        """Name what ``optimizer`` holds, below ``name`` or its class's name."""
        content = instance_dict(optimizer)
        if content is None or id(optimizer) in self.anchors:
            return
        prefix = self._prefix(optimizer, name)
        self.anchors[id(optimizer)] = prefix
        groups, state = content.get("param_groups"), content.get("state")
        parameters = self._parameters(groups, prefix)
        self._add_state(parameters, state, prefix)

    def _add_state(self, parameters: dict[int, int], content: Any, prefix: int) -> None:
        names, copies = self._naming.names, {-1: prefix}
        given = self._naming.first_nodes()
        entries: list[tuple[Any, Any]] = []
        owners: list[int] = []
        for key, state in _entries(content):
            if issubclass(type(key), torch.Tensor):
                path = parameters.get(id(key), given.get(id(key)))
                node = prefix if path is None else names.below(path, copies)
            else:
                node = names.key(prefix, key)
            if type(state) is dict:
                held = [*state.items()]
                entries += held
                owners += [node] * len(held)
            else:
                self._walk(state, node)
        # most are plain tensors by plain names, such as exp_avg: these are named a slot at a time
        slots: dict[str, tuple[list[Any], list[int]]] = {}
        for (key, item), node in zip(entries, owners, strict=True):
            if type(item) is torch.Tensor and type(key) is str:
                if key not in slots:
                    slots[key] = [], []
                items, parents = slots[key]
                items.append(item)
                parents.append(node)
            elif type(item) not in _NOTHING:
                self._walk(item, self._below(node, key))
        for key, (items, parents) in slots.items():
            nodes: Sequence[int]
            if key.isidentifier():
                nodes = names.attributes(parents, [key] * len(parents))
            else:
                nodes = [names.key(parent, key) for parent in parents]
            self._naming.give_all(items, nodes, [_OPTIMIZER] * len(items), again=False)

    def _below(self, node: int, key: Any) -> int:
        names = self._naming.names
        is_name = type(key) is str and key.isidentifier()
        return names.attribute(node, key) if is_name else names.key(node, key)

    def _prefix(self, optimizer: Any, name: str | None) -> int:
        text = name or class_name(optimizer)
        count = self._used[text] = self._used.get(text, 0) + 1
        return self._naming.names.text(text if count == 1 else f"{text}#{count}")

    def _parameters(self, groups: Any, prefix: int) -> dict[int, int]:
        """Name the parameters that no module has; return those names, by address."""
        names, known = self._naming.names, self._naming.first_nodes()
        given: dict[int, int] = {}
        if not issubclass(type(groups), list):
            return given
        root = names.text("param_groups")
        for index, group in enumerate(list.__iter__(groups)):
            members = dict.get(group, "params") if issubclass(type(group), dict) else None
            path = names.attribute(names.index(root, index), "params")
            for position, parameter in _sequence(members):
                if issubclass(type(parameter), torch.Tensor) and id(parameter) not in known:
                    given[id(parameter)] = names.index(path, position)
                    below = names.below(given[id(parameter)], {-1: prefix})
                    self._naming.give(parameter, below, "parameter")
        return given

    def _walk(self, value: Any, node: int, depth: int = 0) -> None:
        names, give = self._naming.names, self._naming.give
        if issubclass(type(value), torch.Tensor):
            give(value, node, "optimizer", again=False)
        elif depth > _DEEPEST:
            return
        elif issubclass(type(value), dict):
            for key, item in _entries(value):
                if type(item) in _NOTHING:
                    continue
                self._walk(item, self._below(node, key), depth=depth + 1)
        else:
            for index, item in _sequence(value):
                if type(item) not in _NOTHING:
                    self._walk(item, names.index(node, index), depth=depth + 1)


def _entries(value: Any) -> list[tuple[Any, Any]]:
    # read as the dict it is: a defaultdict's or a subclass's own methods are not run
    return list(dict.items(value)) if issubclass(type(value), dict) else []


def _sequence(value: Any) -> Iterator[tuple[int, Any]]:
    for kind in (list, tuple, deque):
        if issubclass(type(value), kind):
            return enumerate(list(kind.__iter__(value)))
    return iter(())
