"""Names and roles of objects: their order, and the paths of modules that hold them.

Runs no code of the modules: neither ``named_parameters()``, which may be overridden, nor attribute
access, which ``nn.Module`` implements itself.
"""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tensorlens.frameworks.keras import kinds
from tensorlens.heap.attributes import class_name, dict_of
from tensorlens.records.names import Names
from tensorlens.roles import ROLES, Role

_NUMBERS = {role: number for number, role in enumerate(ROLES)}
_MAX_PATHS = 100_000
"""Modules that contain each other many times have more paths than anyone would read."""
_LEAVE = -1
"""Stands in place of a node: the module's children are done, it is left again."""

_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attributes of the wrapped module in wrappers of torch.compile, FSDP and checkpointing."""

_REGISTRIES: tuple[tuple[str, Role], ...] = (("_parameters", "parameter"), ("_buffers", "buffer"))


class Naming:
    """Names of objects, in the order of addition; an object's first name is its own."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.items: list[Any] = []
        """The objects, kept alive until the census ends; one with two names is there twice."""
        self.nodes = array("i")
        """The name of each item."""
        self.roles = array("b")
        """The role of each item, as an index of :data:`~tensorlens.roles.ROLES`."""
        self.keeps_second = array("b")
        """Whether each name is kept beside an earlier one of its object, as for tied weights."""
        self._first: dict[int, int] = {}
        self._looked_up = 0

    def add(self, item: Any, node: int, role: Role, keeps_second: bool = True) -> None:
        """Name an object; ``keeps_second`` keeps this name beside an earlier one."""
        self.items.append(item)
        self.nodes.append(node)
        self.roles.append(_NUMBERS[role])
        self.keeps_second.append(keeps_second)

    @property
    def addresses(self) -> array[int]:
        """Addresses of :attr:`items`."""
        return array("Q", map(id, self.items))

    def first_nodes(self) -> Mapping[int, int]:
        """Map an object's address to its first name."""
        if self._looked_up < len(self.items):
            items, nodes = self.items[self._looked_up :], self.nodes[self._looked_up :]
            new = dict(zip(map(id, reversed(items)), reversed(nodes), strict=True))
            self._first = {**new, **self._first}
            self._looked_up = len(self.items)
        return self._first


class FirstSeenOrder:
    """An order of objects that lasts; does not keep them alive.

    The collector keeps objects by generation, so the order of the heap changes with every
    collection, and numbers in names would change with it.
    """

    def __init__(self) -> None:
        # by address: a user's class may define __eq__ and __hash__
        self._seen: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._numbers = itertools.count()

    def ordered(self, items: Sequence[Any]) -> list[Any]:
        """Return ``items`` in the order in which they were first seen.

        New ones are ordered by age, as far as the collector tells.
        """
        new = [item for item in items if id(item) not in self._seen]
        for item in _by_age(new):
            reference = weakref.ref(item, functools.partial(self._forget, id(item)))
            self._seen[id(item)] = reference, next(self._numbers)
        return sorted(items, key=lambda item: self._seen[id(item)][1])

    def _forget(self, address: int, reference: weakref.ref[Any]) -> None:
        # another object may have the address by now
        if self._seen.get(address, (None,))[0] is reference:
            del self._seen[address]


def _by_age(items: list[Any]) -> list[Any]:
    if len(items) < 2:
        return items
    ages = {id(item): 2 for item in items}
    for age in (0, 1):
        # all in C: no other thread, which may be filling a tuple, runs while these are referenced
        young = set(map(id, itertools.chain.from_iterable(map(gc.get_objects, (age,)))))
        ages.update(dict.fromkeys(young & ages.keys(), age))
    return sorted(items, key=lambda item: -ages[id(item)])


first_seen = FirstSeenOrder()


class ModulePaths:
    """The modules walked so far, and their paths."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self.paths: dict[int, int] = {}
        """Address of a module to the node of its first path."""
        self.modules: list[Any] = []
        """The modules; one with several paths is there as often."""
        self._held: list[tuple[Any, Any]] = []
        """``(module, parameter or buffer)``."""

    def add(
        self, roots: Iterable[Any], prefixes: Iterable[int], *, keeps_second: bool = True
    ) -> None:
        """Name the tensors of modules and their submodules, below the node of each root.

        A module that contains itself is entered once. One with several paths is entered by each,
        and ``keeps_second`` keeps all names of its tensors.
        """
        for root, prefix in zip(roots, prefixes, strict=True):
            self._walk(root, prefix, keeps_second)

    def note(self, module: Any, node: int) -> None:
        """Note the path of a module, without naming what it holds."""
        self.modules.append(module)
        self.paths.setdefault(id(module), node)

    def users(self) -> Mapping[int, Sequence[Any]]:
        """Map a tensor's address to the modules that have it, in the order of the walk."""
        found: dict[int, dict[int, Any]] = {}
        for module, tensor in self._held:
            found.setdefault(id(tensor), {}).setdefault(id(module), module)
        return {address: list(several.values()) for address, several in found.items()}

    def _walk(self, root: Any, prefix: int, keeps_second: bool) -> None:
        attribute, add = self._naming.names.attribute, self._naming.add
        limit = len(self.modules) + _MAX_PATHS
        inside: set[int] = set()
        # depth first, as named_parameters(): tied weights get the same name first
        waiting = [(root, prefix)]
        while waiting:
            module, node = waiting.pop()
            if node == _LEAVE:
                inside.discard(id(module))
                continue
            content = instance_dict(module)
            if content is None or id(module) in inside:
                continue
            self.note(module, node)
            for registry, role in _REGISTRIES:
                for name, item in entries(dict.get(content, registry)):
                    if type(name) is str and issubclass(type(item), torch.Tensor):
                        add(item, attribute(node, name), role, keeps_second=keeps_second)
                        self._held.append((module, item))
            children = entries(dict.get(content, "_modules"))
            if children and len(self.modules) < limit:
                inside.add(id(module))
                waiting.append((module, _LEAVE))
                waiting += (
                    (child, node if name in _WRAPPED else attribute(node, name))
                    for name, child in reversed(children)
                    if type(name) is str and child is not None
                )


def outermost(modules: Sequence[Any]) -> list[Any]:
    """Return the modules that are not inside another of them, in order."""
    inside: set[int] = set()
    for module in modules:
        children = entries(dict.get(instance_dict(module) or {}, "_modules"))
        inside.update(id(each) for _, each in children if each is not module)
    return [module for module in modules if id(module) not in inside]


def instance_dict(item: Any) -> dict[str, Any] | None:
    """Return an object's ``__dict__`` without running its code; None if it has none."""
    content = dict_of(item)
    return content if issubclass(type(content), dict) else None


def model_name(module: Any) -> str:
    """Return the class of a module, or of the module that a wrapper holds."""
    for name in _WRAPPED:
        registry: Any = dict.get(instance_dict(module) or {}, "_modules")
        if issubclass(type(registry), dict):
            module = dict.get(registry, name, module)
    return class_name(module)


def entries(value: Any) -> list[tuple[Any, Any]]:
    """Return the items of a dict, without running methods of its subclass; empty for others."""
    return list(dict.items(value)) if issubclass(type(value), dict) else []


def forward_of(item: Any) -> str | None:
    """Return the name of the method whose lines are a module's; None if ``item`` is no module.

    It is ``forward``, or ``call`` of a Keras layer, which is a module where torch is the backend.
    """
    if not issubclass(type(item), torch.nn.Module):
        return None
    return "call" if issubclass(type(item), kinds.layer()) else "forward"
