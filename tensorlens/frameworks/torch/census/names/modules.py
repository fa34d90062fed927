"""Names of what modules hold: parameters and buffers by their path.

Nothing of the modules is run: not ``named_parameters``, which may be overridden, nor attribute
access, which ``nn.Module`` answers itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress, starmap
from typing import Any

import torch

from tensorlens.frameworks.torch.census.names.naming import Naming
from tensorlens.heap import attributes
from tensorlens.heap.attributes import class_name
from tensorlens.roles import ROLES

_MOST_PATHS = 100_000
"""Modules that contain each other many times over have more paths than anyone would read."""

_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attributes by which torch.compile, FSDP and checkpoint wrappers hold their module."""

_PARAMETER = ROLES.index("parameter")
_ROLES = (("_parameters", _PARAMETER), ("_buffers", ROLES.index("buffer")))


class ModulePaths:
    """The modules seen so far, and the path of each."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self.paths: dict[int, int] = {}
        """Address of a module to the node of its first path."""
        self.modules: list[Any] = []
        """The modules; one may be there again."""
        self._nodes: list[int] = []
        """The path of each of :attr:`modules`."""
        self._held: list[tuple[list[Any], list[int], list[int]]] = []
        """Tensors, the paths of the modules that they were met in, and their roles."""

    def add(self, roots: Iterable[Any], prefixes: Iterable[int], *, again: bool = True) -> None:
        """Name what modules and their submodules hold, each below the node of its own.

        A module that contains itself is not entered again on its own path. One met again on another
        path is walked again: what it holds has a name by each. ``again`` gives a second name to
        what has one: tied weights within the user's models.
        """
        for root, prefix in zip(roots, prefixes, strict=True):
            self._walk(root, prefix, again)

    def note(self, module: Any, node: int) -> None:
        """Give a module a path, and nothing to what it holds."""
        self.modules.append(module)
        self._nodes.append(node)
        self.paths.setdefault(id(module), node)

    def users(self) -> Mapping[int, Sequence[Any]]:
        """Return address of a parameter to the modules that have it, in the order they were met."""
        modules = dict(zip(self._nodes, self.modules, strict=True))
        found: dict[int, list[Any]] = {}
        for item, node, role in chain.from_iterable(starmap(zip, self._held)):
            if role == _PARAMETER:
                several = found.setdefault(id(item), [])
                if not any(known is modules[node] for known in several):
                    several.append(modules[node])
        return found

    def _walk(self, root: Any, prefix: int, again: bool) -> None:
        # a large model has more entries than all else in the heap: no call of ours for each
        names, dict_of = self._naming.names, _reader()
        entries: list[tuple[str, Any]] = []
        places: list[int] = []
        roles: list[int] = []
        parents: list[int] = []
        texts: list[str] = []
        wrapped: list[tuple[int, int]] = []
        met, first = len(self.modules), len(names)
        # depth first, as named_parameters() goes: of tied weights the same name comes first
        above = [(iter([("", root)]), prefix)]
        inside = [0]
        while above:
            children, path = above[-1]
            for name, module in children:
                content = dict_of(module)
                if not content or type(name) is not str or id(module) in inside:
                    continue
                node = path
                if len(above) > 1:
                    node = first + len(parents)
                    parents.append(path)
                    texts.append(name)
                    if name in _WRAPPED:
                        wrapped.append((node, path))
                self.modules.append(module)
                self._nodes.append(node)
                for registry, role in _ROLES:
                    held = content.get(registry)
                    held = held if type(held) is dict else _plain(held)
                    if held:
                        entries += held.items()
                        places += [node] * len(held)
                        roles += [role] * len(held)
                below = content.get("_modules")
                below = below if type(below) is dict else _plain(below)
                if below and len(self.modules) - met < _MOST_PATHS:
                    above.append((iter([*below.items()]), node))
                    inside.append(id(module))
                    break
            else:
                above.pop()
                inside.pop()
        for module, node in zip(self.modules[met:], self._nodes[met:], strict=True):
            self.paths.setdefault(id(module), node)
        names.attributes(parents, texts)
        for node, path in wrapped:
            names.become(node, path)
        tensor = torch.Tensor
        chosen = [type(name) is str and issubclass(type(item), tensor) for name, item in entries]
        if not all(chosen):
            entries = [*compress(entries, chosen)]
            places, roles = [*compress(places, chosen)], [*compress(roles, chosen)]
        items = [item for _, item in entries]
        self._held.append((items, places, roles))
        given = names.attributes(places, [name for name, _ in entries])
        self._naming.give_all(items, given, roles, again=again)


def outermost(modules: Sequence[Any]) -> list[Any]:
    """Return the modules that are not inside another of them, in order."""
    inside: set[int] = set()
    dict_of = _reader()
    for module in modules:
        children = dict_of(module).get("_modules")
        children = children if type(children) is dict else _plain(children)
        if children:  # most have none
            # copied in one step: another thread may add to it
            inside.update(id(each) for each in [*children.values()] if each is not module)
    return [module for module in modules if id(module) not in inside]


def instance_dict(item: Any) -> dict[str, Any] | None:
    """Return an object's own ``__dict__``, without asking the object; None if it has none."""
    content = attributes.dict_of(item)
    return content if issubclass(type(content), dict) else None


def model_name(module: Any) -> str:
    """Return the name of a module's class, of a wrapper's that of the module it stands for."""
    for name in _WRAPPED:
        registry: Any = (instance_dict(module) or {}).get("_modules")
        if issubclass(type(registry), dict):
            module = dict.get(registry, name, module)
    return class_name(module)


def _reader() -> Callable[[Any], dict[str, Any]]:
    """Return :func:`instance_dict` for many objects of few types; empty for what has none."""
    getters: dict[int, Callable[[Any], Any]] = {}

    def read(item: Any) -> dict[str, Any]:
        kind = id(type(item))
        if kind not in getters:
            getters[kind] = attributes.dict_getter(type(item))
        content = getters[kind](item)
        if type(content) is dict:
            return content
        return dict.copy(content) if issubclass(type(content), dict) else {}

    return read


def _plain(registry: Any) -> dict[str, Any]:
    """Return a registry of a module that is no plain dict as one; it may be a scripted module's."""
    if issubclass(type(registry), dict):
        return dict(dict.items(registry))
    return dict(registry.items()) if _is_scripted(registry) else {}


def _is_scripted(registry: Any) -> bool:
    if registry is None:
        return False
    scripts = sys.modules.get("torch.jit._script")
    kind = getattr(scripts, "OrderedDictWrapper", None)
    return isinstance(kind, type) and issubclass(type(registry), kind)
