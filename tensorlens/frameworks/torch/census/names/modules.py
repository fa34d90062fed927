"""Names of parameters and buffers: the paths of their modules.

Runs no code of the modules: neither ``named_parameters()``, which may be overridden, nor attribute
access, which ``nn.Module`` implements itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.torch.census.names.naming import Naming
from tensorlens.heap import attributes
from tensorlens.heap.attributes import class_name
from tensorlens.roles import Role

_MAX_PATHS = 100_000
"""Modules that contain each other many times have more paths than anyone would read."""
_LEAVE = -1
"""In place of a node: everything below the module was walked."""

_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attributes of the wrapped module in wrappers of torch.compile, FSDP and checkpointing."""

_REGISTRIES: tuple[tuple[str, Role], ...] = (("_parameters", "parameter"), ("_buffers", "buffer"))


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

        A module within itself is not entered again. A module with several paths is: its tensors
        have a name by each, which ``keeps_second`` keeps: tied weights within the user's models.
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
    content = attributes.dict_of(item)
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
    """Return the name of a module's method that has its lines; None if ``item`` is no module.

    It is ``forward``, or ``call`` of a Keras layer, which is a module where torch is the backend.
    """
    if not issubclass(type(item), torch.nn.Module):
        return None
    return "call" if issubclass(type(item), kinds.layer()) else "forward"
