"""Names of what modules hold: parameters and buffers by their path.

Nothing of the modules is run: not ``named_parameters``, which may be overridden, nor attribute
access, which ``nn.Module`` answers itself.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tensorlens.frameworks.heap import fallback, walk
from tensorlens.frameworks.torch.census.naming import Naming
from tensorlens.records.names import ATTRIBUTE

_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What torch.compile, FSDP and checkpoint wrappers call the module that they stand for."""


class ModulePaths:
    """The modules seen so far, and the path of each."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self.paths: dict[int, int] = {}
        """Address of a module to the node of its first path."""
        self._walks: list[walk.Walk] = []

    def add(self, roots: Sequence[Any], prefixes: Sequence[int], *, again: bool = True) -> None:
        """Name what modules and their submodules hold, each below the node of its own.

        ``again`` gives a second name to what has one: tied weights within the user's models.
        """
        nodes = array("i", prefixes)
        for part in walk.walk_registries(list(roots), nodes, self._naming.names, KINDS):
            self._naming.give_all(part, ("parameter", "buffer"), again=again)
            if self.paths:
                for address, path in zip(part.modules, part.paths, strict=True):
                    self.paths.setdefault(address, path)
            else:
                # of a module met twice the first path stays
                self.paths = dict(zip(reversed(part.modules), reversed(part.paths), strict=True))
            self._drop_wrappers(part.paths)
            part.tensors, part.keys = [], []
            self._walks.append(part)

    def _drop_wrappers(self, paths: Iterable[int]) -> None:
        names = self._naming.names
        wrappers = {number for number, text in enumerate(names.texts) if text in _WRAPPED}
        # of a wrapper in a wrapper the outer one comes first
        for node in sorted(paths) if wrappers else ():
            if names.kinds[node] == ATTRIBUTE and names.values[node] in wrappers:
                names.become(node, names.parents[node])

    def owners(self) -> dict[int, int]:
        """Return address of a parameter to the node of the first module that has it."""
        found: dict[int, int] = {}
        parents = self._naming.names.parents
        for part in self._walks:
            for address, node, is_buffer in zip(
                part.addresses, part.nodes, part.buffers, strict=True
            ):
                if not is_buffer:
                    found.setdefault(address, parents[node])
        return found


def _read(module: Any) -> walk.Registries | None:
    content = content_of(module)
    if content is None:
        return None
    # other keys may be of types that run code when they are compared
    found = {key: item for key, item in dict.items(content) if type(key) is str}
    parameters, buffers, modules = (
        _items(found.get(name)) for name in ("_parameters", "_buffers", "_modules")
    )
    return parameters, buffers, modules


KINDS = walk.Kinds(torch.nn.Module, torch.Tensor, _read)
"""What a walk of modules looks for."""


def content_of(item: Any) -> dict[str, Any] | None:
    """Return an object's own ``__dict__``, without asking the object; None if it has none."""
    content = fallback.dict_of(item)
    return content if issubclass(type(content), dict) else None


def model_name(module: Any) -> str:
    """Return the name of a module's class, of a wrapper's that of the module it stands for."""
    for name in _WRAPPED:
        content = content_of(module)
        registry = content.get("_modules") if content is not None else None
        module = dict(_items(registry)).get(name, module)
    return class_name(module)


def _items(registry: Any) -> list[tuple[Any, Any]]:
    """Return a registry's entries: a dict's, read as a dict, or those of a scripted module."""
    if issubclass(type(registry), dict):
        return list(dict.items(registry))
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
