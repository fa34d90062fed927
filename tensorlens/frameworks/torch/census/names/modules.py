"""Names of what modules hold: parameters and buffers by their path.

Nothing of the modules is run: not ``named_parameters``, which may be overridden, nor attribute
access, which ``nn.Module`` answers itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch

from tensorlens.frameworks.torch.census.names.naming import Naming
from tensorlens.heap import fallback

MOST_PLACES = 100_000
"""Modules that contain each other many times over have more paths than anyone would read."""

_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attributes by which torch.compile, FSDP and checkpoint wrappers hold their module."""

_EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


_Place: TypeAlias = "tuple[Any, int, _Place | None]"
"""A module, the node of its path, and the place of the module it is in."""


class ModulePaths:
    """The modules seen so far, and the path of each."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self.paths: dict[int, int] = {}
        """Address of a module to the node of its first path."""
        self.items: dict[int, Any] = {}
        """Address of a module to the module."""
        self.owners: dict[int, int] = {}
        """Address of a parameter to the node of the first module that has it."""
        self.tied: dict[int, list[int]] = {}
        """Address of a parameter that several modules have to their nodes."""
        self.embeddings: set[int] = set()
        """Nodes of the modules that look rows up."""

    def add(self, roots: Iterable[Any], prefixes: Iterable[int], *, again: bool = True) -> None:
        """Name what modules and their submodules hold, each below the node of its own.

        A module that contains itself is not entered again on its own path. One met again on another
        path is walked again: what it holds has a name by each. ``again`` gives a second name to
        what has one: tied weights within the user's models.
        """
        for root, prefix in zip(roots, prefixes, strict=True):
            self._walk(root, prefix, again)

    def _walk(self, root: Any, prefix: int, again: bool) -> None:
        attribute, tensor = self._naming.names.attribute, torch.Tensor
        parameters = self._naming.giver("parameter", again=again)
        buffers = self._naming.giver("buffer", again=again)
        paths, items, owners = self.paths, self.items, self.owners
        waiting: list[_Place] = [(root, prefix, None)]
        seen: set[int] = set()
        # depth first, as named_parameters() goes: of tied weights the same name comes first
        for _ in range(MOST_PLACES):
            if not waiting:
                break
            place = waiting.pop()
            module, path, _ = place
            content = content_of(module)
            if content is None:
                continue
            address = id(module)
            if address in seen and _is_inside_itself(place):
                continue
            seen.add(address)
            own = paths.setdefault(address, path)
            items[address] = module
            if issubclass(type(module), _EMBEDDINGS):
                self.embeddings.add(own)
            for name, item in _items(content, "_parameters"):
                if issubclass(type(item), tensor):
                    parameters(item, attribute(path, name))
                    first = owners.setdefault(id(item), own)
                    if first != own:
                        self.tied.setdefault(id(item), [first]).append(own)
            for name, item in _items(content, "_buffers"):
                if issubclass(type(item), tensor):
                    buffers(item, attribute(path, name))
            children: list[_Place] = []
            for name, child in _items(content, "_modules"):
                if child is not None:
                    node = attribute(path, name)
                    if name in _WRAPPED:
                        self._naming.names.become(node, path)
                    children.append((child, node, place))
            waiting += reversed(children)


def _is_inside_itself(place: _Place) -> bool:
    module, _, above = place
    while above is not None:
        if above[0] is module:
            return True
        above = above[2]
    return False


def outermost(modules: Sequence[Any]) -> list[Any]:
    """Return the modules that are not inside another of them, in order."""
    inside: set[int] = set()
    for module in modules:
        content = content_of(module)
        if content is not None:
            children = _items(content, "_modules")
            inside.update(id(child) for _, child in children if child is not module)
    return [module for module in modules if id(module) not in inside]


def content_of(item: Any) -> dict[str, Any] | None:
    """Return an object's own ``__dict__``, without asking the object; None if it has none."""
    content = fallback.dict_of(item)
    return content if issubclass(type(content), dict) else None


def model_name(module: Any) -> str:
    """Return the name of a module's class, of a wrapper's that of the module it stands for."""
    for name in _WRAPPED:
        content = content_of(module)
        if content is not None:
            module = dict(_items(content, "_modules")).get(name, module)
    return class_name(module)


def _items(content: dict[str, Any], name: str) -> list[tuple[str, Any]]:
    """Return the entries of one of a module's registries.

    That is a dict, which is read as a dict whatever its class, or a scripted module's.
    """
    registry: Any = dict.get(content, name)
    if type(registry) is dict and not registry:
        return []
    if issubclass(type(registry), dict):
        if not dict.__len__(registry):
            return []
        return [(key, item) for key, item in dict.items(registry) if type(key) is str]
    return list(registry.items()) if _is_scripted(registry) else []


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
