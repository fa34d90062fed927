"""Nodes of graphs and their origins: a node is known by the name it has where it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from tensorlens.frameworks.tensorflow.graphs.functions import (
    Body,
    BodyNode,
    Frames,
    Functions,
    enclosing,
    inlined,
    is_compiled,
    is_of_dataset,
    plain_names,
)
from tensorlens.frameworks.tensorflow.graphs.gradients import (
    TAPE,
    Backward,
    forward_of,
    is_gradient,
    summed,
)
from tensorlens.frameworks.tensorflow.graphs.layers import LayerPaths, Scopes, living_layers
from tensorlens.records.logs.events import Phase
from tensorlens.records.logs.stacks import Frame
from tensorlens.records.tensors import SourceLine
from tensorlens.user_code import is_foreign


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """Where a node of a graph comes from."""

    stack: Frames = ()
    """The lines of the user's code that made the node, innermost first; if there are none, the
    innermost line of all."""
    line: SourceLine | None = None
    """The innermost of these lines; None where it is not known, or nodes of this name differ."""
    layer: str | None = None
    """The path of the Keras layer that the node is in."""
    op: str = ""
    """The type of the operation; empty where nodes of this name differ."""
    forward: NodeOrigin | None = None
    """Of a node that computes gradients: the forward operation that it belongs to."""
    phase: Phase = "forward"
    """``other`` is what a step has besides: input pipelines, metrics, initial values."""
    frames: Frames = field(default=(), compare=False, repr=False)
    """All lines that made the node, innermost first, those of libraries included."""


def frame_of(line: SourceLine) -> Frame:
    """Return the frame of a line that made a node."""
    return Frame(line.filename, line.lineno, line.function, not is_foreign(line.filename))


def common_origin(origins: Sequence[NodeOrigin]) -> NodeOrigin | None:
    """Return what several origins have in common; None if there are none."""
    different = list(dict.fromkeys(origins))
    if len(different) < 2:
        return different[0] if different else None
    first = different[0]
    lines = {each.line for each in different}
    phases = {each.phase for each in different}
    forward = [each.forward for each in different if each.forward is not None]
    line = first.line if len(lines) == 1 else None
    return NodeOrigin(
        _common([each.stack for each in different], line),
        line,
        layer=first.layer if len({each.layer for each in different}) == 1 else None,
        op=first.op if len({each.op for each in different}) == 1 else "",
        forward=common_origin(forward) if len(forward) == len(different) else None,
        phase=first.phase if len(phases) == 1 else "other",
        frames=_common([each.frames for each in different], None),
    )


def _common(stacks: list[Frames], line: SourceLine | None) -> Frames:
    """Return the outer frames that all stacks have, and below them the line they have in common."""
    found: list[SourceLine] = []
    for frames in zip(*(reversed(stack) for stack in stacks), strict=False):
        if len(set(frames)) > 1:
            break
        found.append(frames[0])
    if line is not None and (not found or found[-1] != line):
        found.append(line)
    return tuple(reversed(found))


_OPTIMIZERS = ("keras/src/optimizers/", "keras/src/backend/tensorflow/optimizer")
_METRICS = ("keras/src/metrics/",)
_BUILDING = "build_wrapper"
_Place = tuple[Body, BodyNode]


@dataclass(frozen=True, slots=True)
class _NodeFacts:
    """Facts of a node from the frames that made it."""

    stack: Frames
    by_optimizer: bool
    beside: bool
    """Whether it is of what a step has besides: metrics, the making of weights."""


class Nodes:
    """Finds out where nodes come from; what was found stays known.

    One is made for one recording or one estimate: it goes by the layers and functions there are
    when it is first asked.
    """

    def __init__(
        self, functions: Functions | None = None, layers: LayerPaths | None = None
    ) -> None:
        self.functions = functions or Functions()
        self._layers = layers
        self._found = cache(self._find)
        self._places = cache(self._find_places)
        self._origin = cache(self._find_origin)
        self._by_itself = cache(self._find_by_itself)
        self._called = cache(
            lambda name: {each.name: each for each in self.functions.called_by(name)}
        )
        self._besides = cache(self._find_besides)
        self._scopes = cache(self._find_scopes)
        self._backward = cache(Backward)
        self._made: dict[int, _NodeFacts] = {}
        """Address of frames, which bodies keep, to what they tell."""

    def find(self, node_name: str, function_name: str | None = None) -> NodeOrigin | None:
        """Return where a node comes from; None if no function known has such a node.

        Args:
            node_name: the name it has where it runs, with all that inlining and optimizing the
                graph made of it; or a function's name, of what is allocated around its nodes.
            function_name: the function that was called from Python, which has the node or calls
                one that has it. A node that this function does not have is looked for in those
                that it does not call, as those of input pipelines run beside it. Without it all
                functions are looked through, and if several have nodes of that name, what these
                have in common is told.
        """
        return self._found(node_name, function_name)

    def homes(self, node_name: str, function_name: str | None) -> list[tuple[str, str]]:
        """Return the functions that have a node, and the type of its operation there.

        The arguments are those of :meth:`find`, which takes longer as it reads lines as well.
        """
        places = self._places(node_name, function_name) if node_name else []
        return [(body.name, node.op) for body, node in places]

    def within(self, node_name: str, function_name: str) -> bool:
        """Tell whether a function, or one that it calls, has a node or what XLA made of one.

        Nodes of input pipelines run beside it and are not within.
        """
        if is_compiled(node_name) or not node_name:
            return bool(node_name)
        called = self._called(function_name)
        return any(body.name in called for body, _ in self._places(node_name, function_name))

    def _find(self, name: str, function: str | None) -> NodeOrigin | None:
        if not name:
            return None
        if self.functions.body(name) is not None:
            return self._around(name)
        if is_compiled(name):
            return NodeOrigin(op="XLA")
        return common_origin([self._origin(*place) for place in self._places(name, function)])

    def _find_places(self, name: str, function: str | None) -> Sequence[_Place]:
        """Return the nodes that a name may be of."""
        body = self.functions.body(function) if function else None
        if body is not None:
            place = self._place(body, name)
            if place is not None:
                return [place]
            # what it calls may run under its own names: the function of a dataset made within it
            called = self._called(body.name).values()
            places = self._places_in((each for each in called if each is not body), name)
            if places:
                return places
        places = self._places_in(self._besides(function), name)
        if body is not None and not places:
            near = _near(body, name)
            places = [near] if near is not None else []
        return places

    def _places_in(self, bodies: Iterable[Body], name: str) -> list[_Place]:
        return [place for body in bodies if (place := self._place(body, name)) is not None]

    def _find_besides(self, function: str | None) -> list[Body]:
        """Return the bodies of all functions but those that one calls."""
        called = self._called(function) if function else {}
        names = sorted(self.functions.known().difference(called))
        return [body for name in names if (body := self.functions.body(name)) is not None]

    def _around(self, function: str) -> NodeOrigin | None:
        """Return what the nodes of a function agree on: how it came to be traced."""
        body = self.functions.body(function)
        if body is None:
            return None
        origins = [self._origin(body, node) for node in body.nodes.values()]
        found = common_origin(origins)
        line = found.stack[0] if found is not None and found.stack else None
        op = "XLA" if self.functions.compiled(function) else "StatefulPartitionedCall"
        return NodeOrigin(found.stack if found else (), line, op=op, phase="other")

    def _place(self, body: Body, name: str) -> _Place | None:
        for plain in plain_names(name):
            place = self._inlined(body, plain)
            if place is not None:
                return place
        return None

    def _inlined(self, body: Body, name: str) -> _Place | None:
        node = body.nodes.get(name)
        if node is not None:
            return body, node
        for caller, attribute, rest in inlined(name):
            node = body.nodes.get(caller)
            for key, callee in node.calls if node is not None else ():
                if attribute is not None and key != attribute:
                    continue
                other = self.functions.body(callee)
                place = self._place(other, rest) if other is not None else None
                if place is not None:
                    return place
        return None

    def _find_origin(self, body: Body, node: BodyNode) -> NodeOrigin:
        known = self._by_itself(body, node)
        if known.phase != "backward":
            return known
        forward = common_origin(self._forward(body, node, known))
        if forward is None:
            return known
        # of several lines it goes to none, but to where gradients were asked for
        told = forward if forward.line is not None else None
        return replace(known, forward=told, layer=known.layer or forward.layer)

    def _find_by_itself(self, body: Body, node: BodyNode) -> NodeOrigin:
        """Return where a node comes from, but for what it is the gradient of."""
        frames = body.frames(node.name)  # which many nodes share
        made = self._made.get(id(frames)) or self._made.setdefault(id(frames), _facts(frames))
        # the scopes of what tf.gradients made come before those of the operation
        is_scoped = node.name.startswith(TAPE) or not is_gradient(node.name)
        return NodeOrigin(
            made.stack,
            made.stack[0] if made.stack else None,
            layer=self._scopes(body).layer(node.name.removeprefix(TAPE)) if is_scoped else None,
            op=node.op,
            phase=self._phase(body, node, frames, made),
            frames=frames,
        )

    def _forward(
        self, body: Body, node: BodyNode, origin: NodeOrigin, depth: int = 3
    ) -> list[NodeOrigin]:
        """Return the operations that a node may be the gradient of."""
        places = forward_of(body, node, self.functions)
        if places:
            return [self._by_itself(*place) for place in places if place[1] is not node]
        if depth and (parts := summed(body, node)):
            return [
                each
                for part in parts
                for each in self._forward(body, part, self._by_itself(body, part), depth - 1)
            ]
        if is_gradient(node.name):
            return []
        # computed again, as by tf.recompute_grad: on the line that computed it first
        before = [
            self._by_itself(body, other)
            for other in body.nodes.values()
            if other.op == node.op and other.place < node.place
        ]
        return [each for each in before if each.phase == "forward" and each.line == origin.line]

    def _phase(self, body: Body, node: BodyNode, frames: Frames, made: _NodeFacts) -> Phase:
        backward = self._backward(body)
        if backward.by_name(node):
            return "backward"
        if is_of_dataset(body.name):
            return "other"
        if made.by_optimizer:
            return "optimizer"
        if backward.by_line(frames, node):
            return "backward"
        return "other" if made.beside else "forward"

    def _find_scopes(self, body: Body) -> Scopes:
        if self._layers is None:
            self._layers = living_layers()
        return Scopes(body, self._layers)


def _facts(frames: Frames) -> _NodeFacts:
    users = tuple(frame for frame in frames if not is_foreign(frame.filename))
    builds = any(frame.function == _BUILDING for frame in frames)
    beside = builds or _is_in(frames, _METRICS)
    return _NodeFacts(users or frames[:1], _is_in(frames, _OPTIMIZERS), beside)


def _is_in(frames: Frames, folders: tuple[str, ...]) -> bool:
    """Tell whether any of the frames is of a file in one of the folders."""
    files = {frame.filename.replace("\\", "/") for frame in frames}
    return any(folder in file for file in files for folder in folders)


def _near(body: Body, name: str) -> _Place | None:
    """Return the node whose name a rewritten name begins with."""
    for plain in plain_names(name):
        for scope in enclosing(plain):
            node = body.nodes.get(scope)
            if node is not None:
                return body, node
    return None
