"""Finds the Keras layer of a node by the scopes in its name and by its stack.

Keras opens a name scope with the layer's name when it builds a layer and another one when it calls
it, even if nothing is left to build, and TensorFlow makes names unique by a number at their end:
the first call of ``dense`` is in the scope ``dense_1``. The stack tells how many scopes of a name
are layers: it has a ``Layer.__call__`` for each.
(keras/src/layers/layer.py, Layer.__call__; Graph.unique_name of tensorflow/python/framework/ops.py)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any

from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.names import layer_path
from tensorlens.frameworks.tensorflow.graphs.functions import Body
from tensorlens.frameworks.tensorflow.graphs.node_names import enclosing
from tensorlens.heap import instances
from tensorlens.heap.attributes import content_of, text_of

LayerPaths = Mapping[str, Set[str]]
"""Paths of layers by the layers' name."""


def living_layers() -> LayerPaths:
    """Search the heap for layers; none is kept alive."""
    paths: dict[str, set[str]] = defaultdict(set)
    for layer in instances(kinds.layer()):
        paths[_name(layer)].add(layer_path(layer))
    return paths


def _path(known: LayerPaths, names: Sequence[str]) -> str:
    """Return ``layer.path`` of the last of nested layers.

    A layer's path is where it was built: its name alone in a functional model, which is built
    later. The path of an unknown layer is made of the names.
    """
    joined = "/".join(names)
    candidates = known.get(names[-1], frozenset[str]())
    if len(candidates) > 1:  # the path of a layer of the same name elsewhere does not fit
        candidates = {path for path in candidates if f"/{joined}".endswith(f"/{path}")}
    return next(iter(candidates)) if len(candidates) == 1 else joined


def _name(layer: Any) -> str:
    """Return a layer's name without its property ``name``, which a user may override."""
    content = content_of(layer)
    return text_of(content.get("_name")) or text_of(content.get("name"))


_NUMBERED = re.compile(r"(.+)_\d+$")


class LayerScopes:
    """The layers of one function's nodes, by scope."""

    def __init__(self, body: Body, layers: LayerPaths) -> None:
        self._layers = layers
        self._paths: dict[str, str | None] = {}
        for name in body.nodes:
            depth, is_building = body.stack(name).open_layers
            if depth:
                self._add(name, depth, is_building)

    def layer(self, name: str) -> str | None:
        """Return the path of the innermost layer around a name."""
        return next(filter(None, map(self._paths.get, enclosing(name))), None)

    def _add(self, name: str, depth: int, is_building: bool) -> None:
        scope = next(enclosing(name), "")
        if not scope or scope in self._paths:
            return
        parts = scope.split("/")
        layers = self._pick(parts, depth, is_building, known=True)
        if len(layers) < depth:
            layers = self._pick(parts, depth, is_building, known=False)
        names = []
        for index, own_name in layers:
            names.append(own_name)
            self._paths["/".join(parts[: index + 1])] = _path(self._layers, names)
        self._paths.setdefault(scope, None)

    def _pick(
        self, parts: list[str], depth: int, is_building: bool, known: bool
    ) -> list[tuple[int, str]]:
        """Return the index and the layer's name of each part of a scope that is a layer."""
        found: list[tuple[int, str]] = []
        for index, part in enumerate(parts):
            if len(found) >= depth:
                break
            names = _names(part, exact_first=is_building and len(found) == depth - 1)
            if known:
                names = [name for name in names if name in self._layers]
            if names:
                found.append((index, names[0]))
        return found


def _names(part: str, exact_first: bool) -> list[str]:
    """Return the names that the layer of a scope may have, the likelier first."""
    numbered = _NUMBERED.match(part)
    names = [numbered[1], part] if numbered else [part]
    return names[::-1] if exact_first else names
