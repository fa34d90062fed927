"""The Keras layers and ``tf.Module``s alive: how scopes of graphs are told to be theirs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tensorlens.heap import live_objects, select


@dataclass(frozen=True)
class Layers:
    """Names and paths of layers; of modules the name scopes. Nothing of them is kept alive."""

    paths: dict[str, frozenset[str]] = field(default_factory=dict)
    """The paths of the layers of one name."""
    inside: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """The same for the layers that a layer has directly, by the names of the two."""
    modules: frozenset[str] = frozenset()
    """The name scopes of modules."""

    def path(self, names: Sequence[str]) -> str | None:
        """Return ``layer.path`` of the last of nested layers.

        The path is where a layer was built: for one of a functional model that is its name alone,
        as it was built before the model. Of layers that nobody knows the names make the path.
        """
        if not names:
            return None
        joined = "/".join(names)
        candidates = self.paths.get(names[-1], frozenset())
        if len(names) > 1:
            candidates = self.inside.get((names[-2], names[-1]), candidates)
        if len(candidates) > 1:  # that of a layer of the same name elsewhere does not fit
            candidates = frozenset(path for path in candidates if f"/{joined}".endswith(f"/{path}"))
        return next(iter(candidates)) if len(candidates) == 1 else joined


def living_layers() -> Layers:
    """Look for the layers and modules in the heap."""
    keras = getattr(sys.modules.get("keras"), "Layer", None)
    kinds: tuple[type, ...] = (tf.Module, keras) if isinstance(keras, type) else (tf.Module,)
    modules, *others = select(live_objects(), kinds)
    paths: dict[str, set[str]] = {}
    inside: dict[tuple[str, str], set[str]] = {}
    for layer in others[0] if len(kinds) > 1 else ():
        name, path = _name_and_path(layer)
        if name is None:
            continue
        paths.setdefault(name, set()).add(path)
        for child in _children(layer):
            below, its_path = _name_and_path(child)
            if below is not None:
                inside.setdefault((name, below), set()).add(its_path)
    scopes = (getattr(_attribute(module, "_name_scope"), "_name", None) for module in modules)
    return Layers(
        {name: frozenset(all_) for name, all_ in paths.items()},
        {names: frozenset(all_) for names, all_ in inside.items()},
        frozenset(scope.rstrip("/") for scope in scopes if isinstance(scope, str) and scope),
    )


def _name_and_path(layer: Any) -> tuple[str | None, str]:
    """Return a layer's name and path; its properties are the user's to override."""
    name, path = _attribute(layer, "_name"), _attribute(layer, "_path")
    if not isinstance(name, str):
        name = _attribute(layer, "name")
    if not isinstance(name, str):
        return None, ""
    if isinstance(path, str) and path:
        return name, path
    above = _attribute(layer, "_parent_path")
    return name, f"{above}/{name}" if isinstance(above, str) and above else name


def _children(layer: Any) -> list[Any]:
    held = _attribute(layer, "_layers")
    return list(held) if issubclass(type(held), list) else []


def _attribute(item: Any, name: str) -> Any:
    try:
        return object.__getattribute__(item, "__dict__").get(name)
    except Exception:
        return None
