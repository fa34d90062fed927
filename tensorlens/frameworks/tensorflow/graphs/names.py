"""Names of nodes as the runtime writes them, and what they were before it rewrote the graph.

Inlining puts the calling node's name before a node's. Grappler's optimizers and the constant
folding of the runtime put words of their own before or behind the name of the node they replace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_BEFORE = re.compile(
    r"^(?:ConstantFoldingCtrl|ConstantFolding|Func|LayoutOptimizer|DependencyOptimizer|"
    r"LoopOptimizer|Remapper|Fusion|AutoMixedPrecision|"
    r"ArithmeticOptimizer(?:/[A-Za-z]+(?=_))?)[/_]"
)
_BEHIND = re.compile(
    r"(?:"
    r"/?_\d+__cf__\d+|__cf__\d+"  # folded by the runtime
    r"|/(?:input|output|input_control_node|output_control_node)/_\d+"  # ends of a call inlined
    r"|/(?:enter|merge|switch|next|exit|Enter|Merge|Switch|NextIteration|Exit|LoopCond"
    r"|loop_cond|pivot_[tf]|pred|then|else|body|cond)/_\d+"  # parts of a loop or branch lowered
    r"|-folded(?:-\d+)?|-const_axis|_recip|_const_axis|_bcast|_matmul_scale|_bn_\w+"
    r"|-\d+(?:-\d+)?-[A-Za-z0-9]+-(?:LayoutOptimizer|AutoMixedPrecision)"
    r"|-(?:LayoutOptimizer|AutoMixedPrecision)|-[A-Za-z]+-\d+-[A-Za-z]+"
    r"|_arithmetic_optimizer|_LayoutOptimizer"
    r"|/_\d+|:\d+"
    r")$"
)
_WITHIN = re.compile(r"(?<=/)ArithmeticOptimizer/[A-Za-z]+_")  # behind the scope it works in
_BRANCH = re.compile(r"^(body|cond|then|else|branch_?\d*|branches)/_\d+/(.+)$")
_ATTRIBUTES = {"then": "then_branch", "else": "else_branch", "branch": "branches"}
_CALLS = re.compile(r"^(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)+")
_COMPILED = re.compile(r"(?:^|/)cluster_\d+_\d+(?:/|$)|(?:^|/)xla_(?:run|compile)(?:_\d+)?$")


def plain_names(name: str) -> Iterator[str]:
    """Give a node's name, then what it is with more and more of the decoration taken off."""
    yield name
    while True:
        shorter = _BEHIND.sub("", name) or name
        if shorter == name:
            shorter = _WITHIN.sub("", _BEFORE.sub("", name)) or name
        if shorter == name:
            return
        name = shorter
        yield name


def bare_name(name: str) -> str:
    """Return a node's name without the calls inlined around it and what rewriting it added."""
    *_, plain = plain_names(name)
    return _CALLS.sub("", plain)


def inlined(name: str) -> Iterator[tuple[str, str | None, str]]:
    """Give the ways in which a name can be of a node inlined, the shortest caller's name first.

    Each is the calling node's name, the attribute that has the function called, or None where the
    name does not say, and the name of the node in that function.
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
    """Tell whether a node is one that runs what XLA made of a part of a graph."""
    return _COMPILED.search(name) is not None


def enclosing(name: str) -> Iterator[str]:
    """Give the scopes that a name is in, the innermost first."""
    at = name.rfind("/")
    while at > 0:
        yield name[:at]
        at = name.rfind("/", 0, at)
