"""Finds the origin of a graph node by the name that the node has where it runs.

Inlining and Grappler add to the names of nodes; this removes what they added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from tensorlens.frameworks.tensorflow.graphs.functions import (
    Body,
    BodyNode,
    Functions,
    enclosing,
)
from tensorlens.frameworks.tensorflow.graphs.gradients import addends, forward_nodes, is_gradient
from tensorlens.frameworks.tensorflow.graphs.origins import (
    BodyOrigins,
    LayerPaths,
    NodeOrigin,
    common_origin,
    living_layers,
)

_PREFIXES = re.compile(
    r"^(?:ConstantFoldingCtrl|ConstantFolding|Func|LayoutOptimizer|DependencyOptimizer|"
    r"LoopOptimizer|Remapper|Fusion|AutoMixedPrecision|"
    r"ArithmeticOptimizer(?:/[A-Za-z]+(?=_))?)[/_]"
)
_SUFFIXES = re.compile(
    r"(?:"
    r"/?_\d+__cf__\d+|__cf__\d+"  # folded by the runtime
    r"|/(?:input|output|input_control_node|output_control_node)/_\d+"  # ends of an inlined call
    r"|/(?:enter|merge|switch|next|exit|Enter|Merge|Switch|NextIteration|Exit|LoopCond"
    r"|loop_cond|pivot_[tf]|pred|then|else|body|cond)/_\d+"  # parts of a lowered loop or branch
    r"|-folded(?:-\d+)?|-const_axis|_recip|_const_axis|_bcast|_matmul_scale|_bn_\w+"
    r"|-\d+(?:-\d+)?-[A-Za-z0-9]+-(?:LayoutOptimizer|AutoMixedPrecision)"
    r"|-(?:LayoutOptimizer|AutoMixedPrecision)|-[A-Za-z]+-\d+-[A-Za-z]+"
    r"|_arithmetic_optimizer|_LayoutOptimizer"
    r"|/_\d+|:\d+"
    r")$"
)
_INFIXES = re.compile(r"(?<=/)ArithmeticOptimizer/[A-Za-z]+_")  # behind the scope of its nodes
_BRANCH = re.compile(r"^(body|cond|then|else|branch_?\d*|branches)/_\d+/(.+)$")
_ATTRIBUTES = {"then": "then_branch", "else": "else_branch", "branch": "branches"}
_INLINED_CALLS = re.compile(r"^(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)+")
_XLA = re.compile(r"(?:^|/)cluster_\d+_\d+(?:/|$)|(?:^|/)xla_(?:run|compile)(?:_\d+)?$")


def plain_names(name: str) -> Iterator[str]:
    """Yield a node's name, then the name with more and more of the decoration removed."""
    yield name
    while True:
        shorter = _SUFFIXES.sub("", name) or name
        if shorter == name:
            shorter = _INFIXES.sub("", _PREFIXES.sub("", name)) or name
        if shorter == name:
            return
        name = shorter
        yield name


def bare_name(name: str) -> str:
    """Return a node's name without inlined calls around it and without decoration."""
    *_, plain = plain_names(name)
    return _INLINED_CALLS.sub("", plain)


def inlined(name: str) -> Iterator[tuple[str, str | None, str]]:
    """Yield the ways to read a name as that of an inlined node, the shortest caller's name first.

    Each has three parts: the calling node's name; the attribute that names the called function,
    None if the name does not tell it; the node's name in that function.
    """
    at = name.find("/")
    while at >= 0:
        caller, rest = name[:at], name[at + 1 :]
        branch = _BRANCH.match(rest)
        if branch:
            key = branch[1].rstrip("_0123456789")
            yield caller, _ATTRIBUTES.get(key, key), branch[2]
        yield caller, None, rest
        at = name.find("/", at + 1)


def is_compiled(name: str) -> bool:
    """Tell whether a node runs a part of a graph that XLA compiled."""
    return _XLA.search(name) is not None


_Match = tuple[Body, BodyNode]
"""A node and its function."""


class Nodes:
    """Finds the origins of nodes and caches them.

    Make one for a recording or an estimate: it keeps the layers and functions that exist when it is
    first asked.
    """

    def __init__(
        self, functions: Functions | None = None, layers: LayerPaths | None = None
    ) -> None:
        self.functions = functions or Functions()
        self._layers = layers
        self._found = cache(self._find)
        self._matches = cache(self._find_matches)
        self._called = cache(lambda name: {b.name: b for b in self.functions.called_by(name)})
        self._other_bodies = cache(self._find_other_bodies)
        self._origins = cache(self._read_origins)

    def find(self, node_name: str, function_name: str | None = None) -> NodeOrigin | None:
        """Return the origin of a node; None if no known function has such a node.

        Args:
            node_name: the name of the node where it runs, with all that inlining and optimizing the
                graph added; or a function's name, for what is allocated around its nodes.
            function_name: the function called from Python, which has the node or calls one that has
                it. If neither has it, all other functions are searched, such as those of input
                pipelines, which run beside it. Without this name all functions are searched; if
                several have such a node, their common origin is returned.
        """
        return self._found(node_name, function_name)

    def functions_with(self, node_name: str, function_name: str | None) -> list[tuple[str, str]]:
        """Return the functions that have a node, and the type of its operation there.

        The arguments are those of :meth:`find`, which is slower because it reads lines.
        """
        matches = self._matches(node_name, function_name) if node_name else []
        return [(body.name, node.op) for body, node in matches]

    def within(self, node_name: str, function_name: str) -> bool:
        """Tell whether a function, or one that it calls, has a node; true of all code of XLA.

        Nodes of input pipelines run beside it and are not within.
        """
        if is_compiled(node_name) or not node_name:
            return bool(node_name)
        called = self._called(function_name)
        return any(body.name in called for body, _ in self._matches(node_name, function_name))

    def _find(self, name: str, function: str | None) -> NodeOrigin | None:
        if not name:
            return None
        body = self.functions.body(name)
        if body is not None:
            return self._origin_of_call(body)
        if is_compiled(name):
            return NodeOrigin(op="XLA")
        return common_origin([self._origin(*match) for match in self._matches(name, function)])

    def _find_matches(self, name: str, function: str | None) -> Sequence[_Match]:
        """Return the nodes that a name may stand for."""
        body = self.functions.body(function) if function else None
        if body is not None:
            match = self._match(body, name)
            if match is not None:
                return [match]
            # a function that it calls may run under its own name, as one of a dataset made in it
            called = self._called(body.name).values()
            matches = self._matches_in((each for each in called if each is not body), name)
            if matches:
                return matches
        matches = self._matches_in(self._other_bodies(function), name)
        if body is not None and not matches:
            return _longest_known_prefix(body, name)
        return matches

    def _matches_in(self, bodies: Iterable[Body], name: str) -> list[_Match]:
        return [match for body in bodies if (match := self._match(body, name)) is not None]

    def _find_other_bodies(self, function: str | None) -> list[Body]:
        """Return the bodies of all functions but one and those that it calls."""
        called = self._called(function) if function else {}
        names = sorted(self.functions.known().difference(called))
        return [body for name in names if (body := self.functions.body(name)) is not None]

    def _origin_of_call(self, body: Body) -> NodeOrigin:
        """Return the common origin of a function's nodes: how it came to be traced."""
        found = common_origin([self._origin(body, node) for node in body.nodes.values()])
        line = found.stack[0] if found is not None and found.stack else None
        op = "XLA" if self.functions.compiled(body.name) else "StatefulPartitionedCall"
        return NodeOrigin(found.stack if found else (), line, op=op, phase="other")

    def _match(self, body: Body, name: str) -> _Match | None:
        for plain in plain_names(name):
            match = self._match_plain(body, plain)
            if match is not None:
                return match
        return None

    def _match_plain(self, body: Body, name: str) -> _Match | None:
        node = body.nodes.get(name)
        if node is not None:
            return body, node
        for caller, attribute, rest in inlined(name):
            node = body.nodes.get(caller)
            for key, callee in node.calls if node is not None else ():
                if attribute is not None and key != attribute:
                    continue
                other = self.functions.body(callee)
                match = self._match(other, rest) if other is not None else None
                if match is not None:
                    return match
        return None

    def _origin(self, body: Body, node: BodyNode) -> NodeOrigin:
        origin = self._origins(body).of(node)
        if origin.phase != "backward":
            return origin
        forward = common_origin(self._forward(body, node, origin))
        if forward is None:
            return origin
        # the gradient of several lines belongs to the line that asked for gradients
        named = forward if forward.line is not None else None
        return replace(origin, forward=named, layer=origin.layer or forward.layer)

    def _forward(
        self, body: Body, node: BodyNode, origin: NodeOrigin, depth: int = 3
    ) -> list[NodeOrigin]:
        """Return the origins of the operations whose gradient a node may compute."""
        matches = forward_nodes(body, node, self.functions)
        if matches:
            return [self._origins(other).of(each) for other, each in matches if each is not node]
        origin_of = self._origins(body).of
        if depth and (parts := addends(body, node)):
            return [
                each
                for part in parts
                for each in self._forward(body, part, origin_of(part), depth - 1)
            ]
        if is_gradient(node.name):
            return []
        # computed again, as by tf.recompute_grad: on the line that computed it first
        before = [
            origin_of(other)
            for other in body.nodes.values()
            if other.op == node.op and other.index < node.index
        ]
        return [each for each in before if each.phase == "forward" and each.line == origin.line]

    def _read_origins(self, body: Body) -> BodyOrigins:
        if self._layers is None:
            self._layers = living_layers()
        return BodyOrigins(body, self._layers)


def _longest_known_prefix(body: Body, name: str) -> list[_Match]:
    """Return the node whose name a rewritten name begins with; an empty list if there is none."""
    scopes = (scope for plain in plain_names(name) for scope in enclosing(plain))
    return [(body, body.nodes[scope]) for scope in scopes if scope in body.nodes][:1]
