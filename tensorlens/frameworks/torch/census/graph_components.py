"""The parts of autograd's graph that hang together, and who keeps each alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tensorlens.frameworks.torch.census.quiet import undisturbed
from tensorlens.frameworks.torch.census.tensors.graph import walk
from tensorlens.heap import live_objects, select
from tensorlens.records.failures import KeptGraph

_base = torch._C.TensorBase
_LEAF = "AccumulateGrad"


def graphs_kept() -> list[KeptGraph]:
    """Return the parts of the graph that saved something, oldest first.

    Two computations that share nothing but parameters are two parts.
    """
    with undisturbed() as can_read:
        return _graphs_kept(can_read)


def _graphs_kept(can_read: Callable[[], bool]) -> list[KeptGraph]:
    (tensors,) = select(live_objects(), (torch.Tensor,))[:1]
    roots = [(tensor, node) for tensor in tensors for node in _node_of(tensor)]
    graph = walk((node for _, node in roots), can_read)
    parts = _Parts()
    for node in graph.nodes:
        for below in _below(node):
            parts.join(node, below)
    saved: dict[Any, set[int]] = {}
    for each in graph.saved:
        saved.setdefault(parts.of(each.node), set()).update(_addresses(each.tensor))
    holders: dict[Any, list[int]] = {}
    for tensor, node in roots:
        holders.setdefault(parts.of(node), []).extend(_addresses(tensor))
    newest: dict[Any, int] = {}
    for node in graph.nodes:
        part = parts.of(node)
        if part in saved and type(node).__name__ != _LEAF:
            newest[part] = max(newest.get(part, 0), node._sequence_nr())
    return sorted(
        (
            KeptGraph(newest.get(part, 0), frozenset(addresses), tuple(holders.get(part, ())))
            for part, addresses in saved.items()
        ),
        key=lambda graph: graph.newest,
    )


class _Parts:
    """Nodes that hang together, as a forest: each points to one that stands for it."""

    def __init__(self) -> None:
        self._above: dict[Any, Any] = {}

    def of(self, node: Any) -> Any:
        """Return the node that stands for the part."""
        above = self._above
        while node in above:
            if above[node] in above:
                above[node] = above[above[node]]
            node = above[node]
        return node

    def join(self, one: Any, other: Any) -> None:
        """Note that two nodes hang together."""
        first, second = self.of(one), self.of(other)
        if first is not second:
            self._above[second] = first


def _node_of(tensor: Any) -> Iterator[Any]:
    try:
        node = None if _base.is_leaf.__get__(tensor) else _base.grad_fn.__get__(tensor)
    except Exception:
        # a view that was modified in a way autograd forbids
        return
    if node is not None:
        yield node


def _below(node: Any) -> Iterator[Any]:
    try:
        following = node.next_functions
    except Exception:
        # a custom Function whose forward is still running
        return
    for below, _ in following:
        if below is not None and type(below).__name__ != _LEAF:
            yield below


def _addresses(tensor: Any) -> Iterator[int]:
    try:
        address = _base.untyped_storage(tensor).data_ptr()
    except Exception:
        # sparse tensors and the like have none of their own
        return
    if address:
        yield address
