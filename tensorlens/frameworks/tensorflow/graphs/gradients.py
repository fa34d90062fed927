"""Matches operations of the backward pass to those of the forward pass.

A tape puts the nodes of an operation's gradient into ``gradient_tape/`` and the *scope* of that
operation, which several operations may share. ``tf.gradients``, which also makes the gradients of
functions, loops and branches, puts them into a scope named after the operation, with ``_grad``.
(_gradient_function of tensorflow/python/eager/backprop.py, _GradientsHelper of
tensorflow/python/ops/gradients_util.py)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from tensorlens.frameworks.tensorflow.graphs.functions import (
    Body,
    BodyNode,
    Frames,
    Functions,
    Stack,
    enclosing,
)

TAPE_SCOPE = "gradient_tape/"
_SCOPE = re.compile(r"(?:^|/)gradients(?:_\d+)?/")
_GRAD = re.compile(r"_grad(?:_\d+)?(?:/|$)")
_SEED = re.compile(r"(?:ones|ones_like)(?:_\d+)?(?:/\w+)?$")
_GRADIENT_TYPE = re.compile(r"(?:V\d+)$|(?:Grad|Backprop|BackpropInput|BackpropFilter)+(?:V\d+)?$")

_FORWARD_TYPES = {
    "Mul": ("Mul", "Square", "Exp", "Pow", "Log", "SquaredDifference"),
    "Sum": ("AddV2", "Sub", "Mul", "RealDiv", "SquaredDifference", "Maximum", "Minimum"),
    "RealDiv": ("RealDiv", "Mean"),
    "Reshape": ("Reshape", "Sum", "Mean", "AddV2", "Sub", "Mul"),
    "Neg": ("Sub", "Neg", "RealDiv", "DivNoNan"),
    "Tile": ("Mean", "Sum"),
}
"""Type of an operation to the types whose gradient functions use it, for elementwise and reducing
operations (tensorflow/python/ops/math_grad.py)."""


def is_gradient(name: str) -> bool:
    """Tell whether a node's name says that it computes a gradient."""
    return name.startswith(TAPE_SCOPE) or _SCOPE.search(name) is not None


class Backward:
    """The nodes of one function that were made while gradients were computed."""

    def __init__(self, body: Body) -> None:
        self._whole = body.backward_of is not None or "__backward_" in body.name
        self._first: dict[Frames, int] = {}
        """Index of the first gradient node by its frames, the outermost first."""
        for node in body.nodes.values():
            if node.name.startswith(TAPE_SCOPE) and not self._whole:
                frames = body.stack(node.name).outermost_first
                if frames:
                    self._first.setdefault(frames, node.index)
        self._lengths = sorted({len(frames) for frames in self._first})
        self._first_of_stack = cache(self._find_first_of_stack)

    def by_name(self, node: BodyNode) -> bool:
        """Tell whether a node's name, or its function's, says that it computes a gradient."""
        return self._whole or is_gradient(node.name)

    def by_line(self, stack: Stack, node: BodyNode) -> bool:
        """Tell whether a node was made where gradients were asked for, after the first of them.

        This includes operations computed again for the gradients, and the gradients' seeds.
        """
        first = self._first_of_stack(stack)
        return first is not None and (node.index > first or _SEED.match(node.name) is not None)

    def _find_first_of_stack(self, stack: Stack) -> int | None:
        """Return the index of the first gradient node whose frames a stack begins with."""
        firsts = (self._first.get(stack.outermost_first[:length]) for length in self._lengths)
        return min((first for first in firsts if first is not None), default=None)


def forward_nodes(body: Body, node: BodyNode, functions: Functions) -> list[tuple[Body, BodyNode]]:
    """Return the operations of the forward pass that a node of the backward pass may belong to.

    There are several if the node's name does not tell them apart, and none if the node adds up
    gradients or is their seed.
    """
    forward_name = _forward_name(node.name)
    if forward_name is not None:
        for other in _forward_bodies(body, functions):
            found = other.nodes.get(forward_name)
            if found is not None:
                return [(other, found)]
        return []
    if not node.name.startswith(TAPE_SCOPE):
        return []
    for scope in (*enclosing(node.name.removeprefix(TAPE_SCOPE)), ""):
        if scope in body.nodes:
            return [(body, body.nodes[scope])]
        if inside := _inside(body, scope):
            return [(body, each) for each in _likely(body, node, inside)]
    return []


def _forward_name(name: str) -> str | None:
    """Return the operation that ``tf.gradients`` put into a node's name, or an empty text.

    None if the node is in no scope of ``tf.gradients``.
    """
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
    """Return the nodes directly in a scope that compute something other than gradients."""
    return [
        node
        for node in body.scopes.get(scope, ())
        if node.op not in ("Const", "NoOp", "Placeholder", "ReadVariableOp", "Identity")
        and not is_gradient(node.name)
    ]


def _likely(body: Body, node: BodyNode, inside: Sequence[BodyNode]) -> Sequence[BodyNode]:
    """Return the operations of a scope whose gradient a node most likely computes."""
    if len(inside) < 2:
        return inside
    base = _GRADIENT_TYPE.sub("", node.op)
    types = _FORWARD_TYPES.get(node.op, (base,))
    by_type = [each for each in inside if _GRADIENT_TYPE.sub("", each.op) in types]
    read = _values_read(body, node, 4)
    by_values = [each for each in inside if read and read <= {each.name, *each.inputs}]
    both = [each for each in by_values if each in by_type]
    return both or by_type or by_values or inside


def _values_read(body: Body, node: BodyNode, depth: int) -> set[str]:
    """Return the forward operations whose values a node reads, but for constants.

    It reads them directly or through nodes that take no gradient.
    """
    found: set[str] = set()
    for name in node.inputs:
        below = body.nodes.get(name)
        if below is None or below.op == "Const":
            continue
        if not is_gradient(name):
            found.add(name)
        elif depth and not any(_is_computed(body, each) for each in below.inputs):
            found |= _values_read(body, below, depth - 1)
    return found


def _is_computed(body: Body, name: str) -> bool:
    node = body.nodes.get(name)
    return is_gradient(name) and (node is None or node.op != "Const")


def addends(body: Body, node: BodyNode) -> list[BodyNode]:
    """Return the gradient nodes that a node adds up; none if it does something else."""
    if node.op != "AddN" and not (node.op == "AddV2" and "/" not in node.name):
        return []
    nodes = [body.nodes[name] for name in node.inputs if name in body.nodes]
    return nodes if all(is_gradient(each.name) for each in nodes) else []
