"""Origins of graph nodes: lines, Keras layer and phase, by the function that the nodes are in."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.names import layer_path
from tensorlens.frameworks.tensorflow.graphs.functions import (
    Body,
    BodyNode,
    Frames,
    Stack,
    enclosing,
    is_of_dataset,
)
from tensorlens.frameworks.tensorflow.graphs.gradients import TAPE_SCOPE, Backward, is_gradient
from tensorlens.heap import instances
from tensorlens.heap.attributes import content_of, text_of
from tensorlens.records.logs.events import Phase
from tensorlens.records.logs.stacks import Frame
from tensorlens.records.tensors import SourceLine
from tensorlens.user_code import is_foreign


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """The origin of a graph node."""

    stack: Frames = ()
    """The user's lines that made the node, innermost first; if there are none, the innermost line
    of all."""
    line: SourceLine | None = None
    """The innermost of these lines; None if unknown or if nodes of this name differ."""
    layer: str | None = None
    """Path of the Keras layer that the node is in."""
    op: str = ""
    """Type of the operation; empty if nodes of this name differ."""
    forward: NodeOrigin | None = None
    """Origin of the forward operation whose gradient the node computes."""
    phase: Phase = "forward"
    """``other`` is everything besides a step: input pipelines, metrics, initial values."""
    frames: Frames = field(default=(), compare=False, repr=False)
    """All lines that made the node, innermost first, including those of libraries."""


def frame_of(line: SourceLine) -> Frame:
    """Return the frame of a line that made a node."""
    return Frame(line.filename, line.lineno, line.function, not is_foreign(line.filename))


def common_origin(origins: list[NodeOrigin]) -> NodeOrigin | None:
    """Return the common part of several origins; None if there are none."""
    different = list(dict.fromkeys(origins))
    if len(different) < 2:
        return different[0] if different else None
    first = different[0]
    lines = {each.line for each in different}
    phases = {each.phase for each in different}
    forward = [each.forward for each in different if each.forward is not None]
    line = first.line if len(lines) == 1 else None
    return NodeOrigin(
        _common_frames([each.stack for each in different], line),
        line,
        layer=first.layer if len({each.layer for each in different}) == 1 else None,
        op=first.op if len({each.op for each in different}) == 1 else "",
        forward=common_origin(forward) if len(forward) == len(different) else None,
        phase=first.phase if len(phases) == 1 else "other",
        frames=_common_frames([each.frames for each in different], None),
    )


def _common_frames(stacks: list[Frames], line: SourceLine | None) -> Frames:
    """Return the outer frames that all stacks share, and below them their common line."""
    found: list[SourceLine] = []
    for frames in zip(*(reversed(stack) for stack in stacks), strict=False):
        if len(set(frames)) > 1:
            break
        found.append(frames[0])
    if line is not None and (not found or found[-1] != line):
        found.append(line)
    return tuple(reversed(found))


class BodyOrigins:
    """Origins of the nodes of one function; ``forward`` is left empty."""

    def __init__(self, body: Body, layers: LayerPaths) -> None:
        self._body = body
        self._scopes = LayerScopes(body, layers)
        self._backward = Backward(body)
        self.of = cache(self._find)

    def _find(self, node: BodyNode) -> NodeOrigin:
        stack = self._body.stack(node.name)
        # under tf.gradients the scopes do not begin with those of layers
        has_layer_scopes = node.name.startswith(TAPE_SCOPE) or not is_gradient(node.name)
        return NodeOrigin(
            stack.users,
            stack.users[0] if stack.users else None,
            layer=self._scopes.layer(node.name.removeprefix(TAPE_SCOPE))
            if has_layer_scopes
            else None,
            op=node.op,
            phase=self._phase(node, stack),
            frames=stack.frames,
        )

    def _phase(self, node: BodyNode, stack: Stack) -> Phase:
        if self._backward.by_name(node):
            return "backward"
        if is_of_dataset(self._body.name):
            return "other"
        if stack.is_optimizer:
            return "optimizer"
        if self._backward.by_line(stack, node):
            return "backward"
        return "other" if stack.is_metric_or_build else "forward"


LayerPaths = Mapping[str, Set[str]]
"""Paths of layers by the layers' name."""


def living_layers() -> LayerPaths:
    """Search the heap for layers; none is kept alive."""
    paths: dict[str, set[str]] = defaultdict(set)
    for layer in instances(kinds.layer()):
        paths[_name(layer)].add(layer_path(layer))
    return paths


def _path(known: LayerPaths, names: Sequence[str]) -> str:
    """Return the path of the innermost of nested layers, given their names from the outside in.

    Keras sets a layer's path where the layer is built: in a functional model, which is built
    later, it is the name alone. For an unknown layer, or several that fit, the names are joined.
    """
    joined = "/".join(names)
    candidates = known.get(names[-1], frozenset[str]())
    if len(candidates) > 1:
        # several layers have this name: keep those whose path ends like these scopes
        candidates = {path for path in candidates if f"/{joined}".endswith(f"/{path}")}
    return next(iter(candidates)) if len(candidates) == 1 else joined


def _name(layer: Any) -> str:
    """Return a layer's name without its property ``name``, which a user may override."""
    content = content_of(layer)
    return text_of(content.get("_name")) or text_of(content.get("name"))


_NUMBERED = re.compile(r"(.+)_\d+$")


class LayerScopes:
    """The layers of one function's nodes, by scope.

    Keras opens a name scope with the layer's name when it builds a layer and another one when it
    calls it, even if nothing is left to build, and TensorFlow makes names unique by a number at
    their end: the first call of ``dense`` is in the scope ``dense_1``. The stack tells how many
    scopes of a name are layers: it has a ``Layer.__call__`` for each.
    (keras/src/layers/layer.py, Layer.__call__; Graph.unique_name of
    tensorflow/python/framework/ops.py)
    """

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
        """Find the layers of a node's scope; ``depth`` is how many were open."""
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
        """Return the index and the layer's name of each part of a scope that is a layer.

        The scope of a layer that is being built has its exact name; when it is called, TensorFlow
        has appended a number. With ``known`` only names of living layers count.
        """
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
