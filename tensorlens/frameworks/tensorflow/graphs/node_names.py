"""Names of graph nodes where they run, and what inlining and Grappler added to them."""

from __future__ import annotations

import re
from collections.abc import Iterator

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

    Each is the calling node's name, the attribute that has the called function, or None if the
    name does not tell, and the name of the node in that function.
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


def enclosing(name: str) -> Iterator[str]:
    """Yield the scopes around a name, the innermost first."""
    at = name.rfind("/")
    while at > 0:
        yield name[:at]
        at = name.rfind("/", 0, at)
