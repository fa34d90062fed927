"""Names of what modules hold: parameters and buffers by their path.

Nothing of the modules is run: not ``named_parameters``, which may be overridden, nor attribute
access, which ``nn.Module`` answers itself.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch

from tensorlens.frameworks.torch.census.naming import Naming

_MOST_PATHS = 100_000
"""Modules that contain each other many times over have more paths than anyone would read."""


_Place: TypeAlias = "tuple[Any, int, _Place | None]"
"""A module, the node of its path, and the place of the module it is in."""


class ModulePaths:
    """The modules seen so far, and the path of each."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self.paths: dict[int, int] = {}
        """Address of a module to the node of its first path."""
        self.anchors: dict[int, int] = {}
        """Address of a module's ``__dict__`` to the node of its first path."""
        self.owners: dict[int, int] = {}
        """Address of a parameter to the node of the first module that has it."""

    def add(self, root: Any, prefix: int, *, again: bool = True) -> None:
        """Name what ``root`` and its submodules hold, below the node ``prefix``.

        ``again`` gives a second name to what has one: tied weights within the user's models.
        """
        attribute, give = self._naming.names.attribute, self._naming.give
        # depth first, as named_parameters() goes: of tied weights the same name comes first
        waiting: list[_Place] = [(root, prefix, None)]
        for _ in range(_MOST_PATHS):
            if not waiting:
                return
            place = waiting.pop()
            module, path, _ = place
            content = content_of(module)
            if content is None:
                continue
            if id(module) not in self.paths:
                self.paths[id(module)] = path
                self.anchors[id(content)] = path
            elif _is_inside_itself(place):
                continue
            for name, item in _items(content.get("_parameters")):
                if issubclass(type(item), torch.Tensor):
                    give(item, attribute(path, name), "parameter", again=again)
                    self.owners.setdefault(id(item), path)
            for name, item in _items(content.get("_buffers")):
                if issubclass(type(item), torch.Tensor):
                    give(item, attribute(path, name), "buffer", again=again)
            children = [
                (child, attribute(path, name), place)
                for name, child in _items(content.get("_modules"))
                if child is not None
            ]
            waiting += reversed(children)


def _is_inside_itself(place: _Place) -> bool:
    module, _, above = place
    while above is not None:
        if above[0] is module:
            return True
        above = above[2]
    return False


def roots_among(modules: Iterable[Any]) -> list[Any]:
    """Return the modules that are not inside another of them, in order."""
    modules = list(modules)
    inside = {
        id(child)
        for module in modules
        for _, child in _items((content_of(module) or {}).get("_modules"))
        if child is not module
    }
    return [module for module in modules if id(module) not in inside]


def content_of(item: Any) -> dict[str, Any] | None:
    """Return an object's own ``__dict__``, without asking the object; None if it has none."""
    try:
        content = object.__getattribute__(item, "__dict__")
    except Exception:
        return None
    return content if issubclass(type(content), dict) else None


def _items(registry: Any) -> Iterable[tuple[str, Any]]:
    """Return a registry's entries: a dict's, read as a dict, or those of a scripted module."""
    kind = type(registry)
    if kind is dict or kind is OrderedDict:
        return list(registry.items()) if registry else ()
    if issubclass(kind, dict):
        return list(dict.items(registry))
    return list(registry.items()) if _is_scripted(registry) else ()


def _is_scripted(registry: Any) -> bool:
    if registry is None:
        return False
    scripts = sys.modules.get("torch.jit._script")
    kind = getattr(scripts, "OrderedDictWrapper", None)
    return isinstance(kind, type) and issubclass(type(registry), kind)


def class_name(item: Any) -> str:
    """Return the name of an object's class, without running code of its metaclass."""
    kind = type(item)
    try:
        return str(type.__dict__["__name__"].__get__(kind))
    except Exception:
        return "object"
