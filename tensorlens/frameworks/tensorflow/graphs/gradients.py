"""Matches operations of the backward pass to those of the forward pass.

A tape puts what computes the gradient of an operation into ``gradient_tape/`` and the *scope* that
operation was made in, so that it may be one of several. ``tf.gradients``, which also makes the
gradients of functions, loops and branches, puts it into the operation's own name and ``_grad``.
(_gradient_function of tensorflow/python/eager/backprop.py, _GradientsHelper of
tensorflow/python/ops/gradients_util.py)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tensorlens.frameworks.tensorflow.graphs.functions import Body, BodyNode, Frames, Functions

TAPE = "gradient_tape/"
_SCOPE = re.compile(r"(?:^|/)gradients(?:_\d+)?/")
_GRAD = re.compile(r"_grad(?:_\d+)?(?:/|$)")
_SEED = re.compile(r"(?:ones|ones_like)(?:_\d+)?(?:/\w+)?$")
_OF_GRADIENTS = re.compile(r"(?:V\d+)$|(?:Grad|Backprop|BackpropInput|BackpropFilter)+(?:V\d+)?$")

# what the gradient functions of elementwise and reducing operations are made of, where it is of
# another type than the operation (tensorflow/python/ops/math_grad.py)
_MADE_FOR = {
    "Mul": ("Mul", "Square", "Exp", "Pow", "Log", "SquaredDifference"),
    "Sum": ("AddV2", "Sub", "Mul", "RealDiv", "SquaredDifference", "Maximum", "Minimum"),
    "RealDiv": ("RealDiv", "Mean"),
    "Reshape": ("Reshape", "Sum", "Mean", "AddV2", "Sub", "Mul"),
    "Neg": ("Sub", "Neg", "RealDiv", "DivNoNan"),
    "Tile": ("Mean", "Sum"),
}


def is_gradient(name: str) -> bool:
    """Tell whether a node's name says that it computes a gradient."""
    return name.startswith(TAPE) or _SCOPE.search(name) is not None


class Backward:
    """Which nodes of one body were made while gradients were computed."""

    def __init__(self, body: Body) -> None:
        self._whole = body.backward_of is not None or "__backward_" in body.name
        self._first: dict[Frames, int] = {}
        """Frames where gradients were asked for, the outermost first, to the first such node."""
        for node in body.nodes.values():
            if node.name.startswith(TAPE) and not self._whole:
                frames = tuple(reversed(body.frames(node.name)))
                if frames:
                    self._first.setdefault(frames, node.place)
        self._lengths = sorted({len(frames) for frames in self._first})
        self._begins: dict[int, int | None] = {}
        """Address of frames, which the body keeps, to the first node made where they begin."""

    def by_name(self, node: BodyNode) -> bool:
        """Tell whether a node's name, or its function's, says that it is one."""
        return self._whole or is_gradient(node.name)

    def by_line(self, frames: Frames, node: BodyNode) -> bool:
        """Tell whether a node was made where gradients were asked for, and after the first of them.

        So is what is computed again for the gradients, and what these begin with.
        """
        if not self._first:
            return False
        if id(frames) not in self._begins:
            outward = tuple(reversed(frames))
            firsts = [self._first.get(outward[:length]) for length in self._lengths]
            known = [first for first in firsts if first is not None]
            self._begins[id(frames)] = min(known, default=None)
        first = self._begins[id(frames)]
        return first is not None and (node.place > first or _SEED.match(node.name) is not None)


def forward_of(body: Body, node: BodyNode, functions: Functions) -> list[tuple[Body, BodyNode]]:
    """Return the operations of the forward pass that a node of the backward pass may belong to.

    There is more than one where the node's name does not tell them apart, and none where the node
    adds up gradients or begins them.
    """
    asked = _asked(node.name)
    if asked is not None:
        for other in _forward_bodies(body, functions):
            found = other.nodes.get(asked)
            if found is not None:
                return [(other, found)]
        return []
    if not node.name.startswith(TAPE):
        return []
    scope = node.name[len(TAPE) :].rpartition("/")[0]
    while scope:
        found = body.nodes.get(scope)
        if found is not None:
            return [(body, found)]
        inside = _inside(body, scope)
        if inside:
            return [(body, each) for each in _likely(body, node, inside)]
        scope = scope.rpartition("/")[0]
    return [(body, each) for each in _likely(body, node, _inside(body, ""))]


def _asked(name: str) -> str | None:
    """Return the operation that ``tf.gradients`` names in a node's name."""
    scopes = list(_SCOPE.finditer(name))
    if not scopes:
        return None
    inner = name[scopes[-1].end() :]
    ends = list(_GRAD.finditer(inner))
    return inner[: ends[0].start()] if ends else ""


def _forward_bodies(body: Body, functions: Functions) -> list[Body]:
    names = [body.backward_of, f"{body.backward_of}_rewritten"] if body.backward_of else []
    found = [other for name in names if name and (other := functions.body(name)) is not None]
    return [*found, body]


def _inside(body: Body, scope: str) -> list[BodyNode]:
    """Return the nodes right in a scope that take part in computing, without gradients."""
    return [
        node
        for node in body.scopes.get(scope, ())
        if node.op not in ("Const", "NoOp", "Placeholder", "ReadVariableOp", "Identity")
        and not is_gradient(node.name)
    ]


def _likely(body: Body, node: BodyNode, inside: Sequence[BodyNode]) -> Sequence[BodyNode]:
    """Leave those operations whose gradient the node can be of."""
    if len(inside) < 2:
        return inside
    base = _OF_GRADIENTS.sub("", node.op)
    types = _MADE_FOR.get(node.op, (base,))
    named = [each for each in inside if _OF_GRADIENTS.sub("", each.op) in types]
    read = _values(body, node, 4)
    reads = [each for each in inside if read and read <= {each.name, *each.inputs}]
    both = [each for each in reads if each in named]
    return both or named or reads or inside


def _values(body: Body, node: BodyNode, depth: int) -> set[str]:
    """Return the operations of the forward pass whose values a node computes with.

    Constants aside, directly or by way of nodes that take no gradient.
    """
    found: set[str] = set()
    for name in node.inputs:
        below = body.nodes.get(name)
        if below is None or below.op == "Const":
            continue
        if not is_gradient(name):
            found.add(name)
        elif depth and not any(_is_computed(body, each) for each in below.inputs):
            found |= _values(body, below, depth - 1)
    return found


def _is_computed(body: Body, name: str) -> bool:
    node = body.nodes.get(name)
    return is_gradient(name) and (node is None or node.op != "Const")


def summed(body: Body, node: BodyNode) -> list[BodyNode]:
    """Return the nodes whose gradients a node adds up; none if it does something else."""
    if node.op != "AddN" and not (node.op == "AddV2" and "/" not in node.name):
        return []
    nodes = [body.nodes[name] for name in node.inputs if name in body.nodes]
    return nodes if all(is_gradient(each.name) for each in nodes) else []
