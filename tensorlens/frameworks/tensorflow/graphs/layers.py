"""Finds the Keras layer of a node by its name's scopes and the frames that made it.

Keras opens a name scope of the layer's name when it builds a layer and another one when it calls
it, also when there is nothing left to build, and TensorFlow makes names unique by a number behind
them: the first call of ``dense`` is in the scope ``dense_1``. How many of a name's scopes are
layers is told by the frames: each layer has its ``Layer.__call__`` among them.
(keras/src/layers/layer.py, Layer.__call__; Graph.unique_name of tensorflow/python/framework/ops.py)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any

from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.names import layer_path
from tensorlens.frameworks.tensorflow.graphs.functions import Body, Frames, enclosing
from tensorlens.heap import instances
from tensorlens.heap.attributes import content_of, text_of

LayerPaths = Mapping[str, Set[str]]
"""Name of a layer to the paths of the layers of that name."""


def living_layers() -> LayerPaths:
    """Look for the layers in the heap; nothing of them is kept alive."""
    paths: dict[str, set[str]] = defaultdict(set)
    for layer in instances(kinds.layer()):
        paths[_name(layer)].add(layer_path(layer))
    return paths


def _path(known: LayerPaths, names: Sequence[str]) -> str:
    """Return ``layer.path`` of the last of nested layers.

    The path is where a layer was built: for one of a functional model that is its name alone,
    as it was built before the model. Of layers that nobody knows the names make the path.
    """
    joined = "/".join(names)
    candidates = known.get(names[-1], frozenset[str]())
    if len(candidates) > 1:  # that of a layer of the same name elsewhere does not fit
        candidates = {path for path in candidates if f"/{joined}".endswith(f"/{path}")}
    return next(iter(candidates)) if len(candidates) == 1 else joined


def _name(layer: Any) -> str:
    """Return a layer's name; its properties are the user's to override."""
    content = content_of(layer)
    return text_of(content.get("_name")) or text_of(content.get("name"))


_NUMBERED = re.compile(r"(.+)_\d+$")
_LAYER_CODE = "keras/src/layers/layer.py"


class Scopes:
    """The layers of one body."""

    def __init__(self, body: Body, layers: LayerPaths) -> None:
        self._layers = layers
        self._paths: dict[str, str | None] = {}
        known: dict[int, tuple[int, bool]] = {}
        for name in body.nodes:
            frames = body.frames(name)  # which many nodes share
            if id(frames) not in known:
                known[id(frames)] = _depth(frames)
            depth, building = known[id(frames)]
            if depth:
                self._learn(name, depth, building)

    def layer(self, name: str) -> str | None:
        """Return the path of the innermost layer that a name is in."""
        return next(filter(None, map(self._paths.get, enclosing(name))), None)

    def _learn(self, name: str, depth: int, building: bool) -> None:
        scope = next(enclosing(name), "")
        if not scope or scope in self._paths:
            return
        parts = scope.split("/")
        layers = self._pick(parts, depth, building, known=True)
        if len(layers) < depth:
            layers = self._pick(parts, depth, building, known=False)
        names = []
        for place, own_name in layers:
            names.append(own_name)
            self._paths["/".join(parts[: place + 1])] = _path(self._layers, names)
        self._paths.setdefault(scope, None)

    def _pick(
        self, parts: list[str], depth: int, building: bool, known: bool
    ) -> list[tuple[int, str]]:
        """Return which of a scope's parts are layers, and the layers' names."""
        found: list[tuple[int, str]] = []
        for place, part in enumerate(parts):
            if len(found) >= depth:
                break
            names = _names(part, exact_first=building and len(found) == depth - 1)
            if known:
                names = [name for name in names if name in self._layers]
            if names:
                found.append((place, names[0]))
        return found


def _names(part: str, exact_first: bool) -> list[str]:
    """Return the names that a layer whose scope is named so may have, the likelier one first."""
    numbered = _NUMBERED.match(part)
    names = [numbered[1], part] if numbered else [part]
    return names[::-1] if exact_first else names


def _depth(frames: Frames) -> tuple[int, bool]:
    """Return how many layers' scopes were open, and whether the innermost was being built."""
    depth, building, opened = 0, False, False
    for frame in reversed(frames):
        if not frame.filename.replace("\\", "/").endswith(_LAYER_CODE):
            continue
        if frame.function == "__call__":
            depth, building, opened = depth + 1, False, False
        elif frame.function == "_maybe_build":
            opened = True  # the scope that build() opens is the one open already
        elif frame.function == "build_wrapper":
            depth, building, opened = depth + (not opened), True, False
    return depth, building
