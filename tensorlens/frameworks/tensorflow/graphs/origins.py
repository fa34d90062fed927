"""Origins of graph nodes: lines, Keras layer and phase, by the function that the nodes are in."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from tensorlens.frameworks.tensorflow.graphs.functions import Body, BodyNode, is_of_dataset
from tensorlens.frameworks.tensorflow.graphs.gradients import TAPE_SCOPE, Backward, is_gradient
from tensorlens.frameworks.tensorflow.graphs.layers import LayerPaths, LayerScopes
from tensorlens.frameworks.tensorflow.graphs.stacks import Frames, Stack
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
    """Origins of the nodes of one function, without the forward operations of gradients."""

    def __init__(self, body: Body, layers: LayerPaths) -> None:
        self._body = body
        self._scopes = LayerScopes(body, layers)
        self._backward = Backward(body)
        self.of = cache(self._find)

    def _find(self, node: BodyNode) -> NodeOrigin:
        stack = self._body.stack(node.name)
        # tf.gradients puts scopes of its own around those of the operation
        is_scoped = node.name.startswith(TAPE_SCOPE) or not is_gradient(node.name)
        return NodeOrigin(
            stack.users,
            stack.users[0] if stack.users else None,
            layer=self._scopes.layer(node.name.removeprefix(TAPE_SCOPE)) if is_scoped else None,
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
