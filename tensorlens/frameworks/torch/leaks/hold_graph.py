"""Graph of the references that Python's collector does not see: those of tensors and nodes.

Vertices are numbers: rows of the scan first, then nodes. Only addresses, sizes and texts of them
are kept.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from tensorlens.frameworks.torch.census.graph import LEAF, REENTRANT, Saved, nodes_below, tensors_in
from tensorlens.frameworks.torch.census.live_tensors import FoundTensors
from tensorlens.frameworks.torch.census.names.naming import instance_dict
from tensorlens.heap.attributes import class_name, is_subtype
from tensorlens.records.references import Reference

Storage: TypeAlias = tuple[int, int]
"""Address and bytes."""
EdgePath: TypeAlias = "tuple[EdgePath | None, tuple[int, int]]"
"""Linked list of a path's edges that have a text, the last edge first."""


class HoldGraph:
    """The references that torch's own objects have to each other."""

    def __init__(self, found: FoundTensors) -> None:
        first = len(found.scan)
        self._of_node = {node: first + at for at, node in enumerate(found.graph.nodes)}
        self.references_inside: Counter[int] = Counter()
        """Number of references to a tensor, by ``id()``, that Python objects in the graph have."""
        self.storage = array("Q", found.scan.storage)
        self.nbytes = array("q", found.scan.storage_nbytes)
        self._rows = len(found.scan)
        self._below: dict[int, list[int]] = {}
        self._texts: dict[tuple[int, int], tuple[str, str]] = {}
        """Kind and text of references, except those from node to node."""
        self._types = [class_name(node) for node in found.graph.nodes]
        self._add_tensors(found)
        self._add_nodes(found)
        self._add_saved(found)
        self._add_contexts(found)

    def vertices_of(self, nodes: Iterable[Any]) -> list[int]:
        """Return the vertices of nodes; not after :meth:`release`."""
        return [self._of_node[node] for node in nodes]

    def release(self) -> None:
        """Drop the nodes; the graph stays."""
        self._of_node = {}

    def _add(self, above: int, below: int, kind: str, text: str) -> None:
        if below >= 0 and above != below and (above, below) not in self._texts:
            self._below.setdefault(above, []).append(below)
            self._texts[above, below] = kind, text

    def _add_tensors(self, found: FoundTensors) -> None:
        for owner, row in zip(found.scan.owners, found.scan.gradients, strict=True):
            self._add(owner, row, "attribute", "grad")
        for owner, parts in found.parts.items():
            for row, part in parts:
                self._add(owner, row, "attribute", part.name or part.note)
        for row, node in found.makers.items():
            if node in self._of_node:
                self._add(row, self._of_node[node], "graph", "grad_fn")

    def _add_nodes(self, found: FoundTensors) -> None:
        of_node = self._of_node
        for node, vertex in of_node.items():
            below = dict.fromkeys(of_node[each] for each in nodes_below(node))
            if below:
                self._below[vertex] = list(below)
        leaves = list(found.graph.leaves.items())
        rows = found.scan.rows_of(array("Q", [id(leaf) for _, leaf in leaves]))
        for (node, _), row in zip(leaves, rows, strict=True):
            self._add(of_node[node], row, "graph", "AccumulateGrad.variable")

    def _add_saved(self, found: FoundTensors) -> None:
        for pairs in found.saved_of_storage.values():
            for saved, row in pairs:
                text = _saved_text(saved)
                nodes = saved.region.nodes if saved.region is not None else ()
                for node in (saved.node, *nodes):
                    self._add(self._of_node[node], row, "saved", text)
                if saved.region is not None or saved.packed_by is not None:
                    self.references_inside[id(saved.tensor)] += 1

    def _add_contexts(self, found: FoundTensors) -> None:
        """Add tensors in attributes of ``ctx``, and in plain containers there."""
        for node, vertex in self._of_node.items():
            name = self._types[vertex - self._rows]
            if not is_subtype(type(node), torch._C._FunctionBase) or name == REENTRANT:
                continue
            held = [
                (key, tensor)
                for key, value in dict.items(instance_dict(node) or {})
                if type(key) is str
                for tensor in tensors_in(value)
            ]
            if held:
                rows = found.scan.rows_of(array("Q", [id(tensor) for _, tensor in held]))
                for (key, tensor), row in zip(held, rows, strict=True):
                    self._add(vertex, row, "attribute", f"{name}.{key} (ctx)")
                    self.references_inside[id(tensor)] += 1

    def holds_anything(self, vertex: int) -> bool:
        """Return whether something is below a vertex."""
        return vertex in self._below

    def held_vertices(self) -> set[int]:
        """Return the vertices that another vertex holds."""
        return {below for following in self._below.values() for below in following}

    def reach(self, starts: Iterable[int]) -> set[int]:
        """Return the vertices at and below ``starts``."""
        reached = set(starts)
        waiting = list(reached)
        while waiting:
            for below in self._below.get(waiting.pop(), ()):
                if below not in reached:
                    reached.add(below)
                    waiting.append(below)
        return reached

    def storages(self, vertices: Iterable[int]) -> Iterator[Storage]:
        """Yield the memory of each vertex that has some."""
        for vertex in vertices:
            if vertex < self._rows and self.storage[vertex]:
                yield self.storage[vertex], self.nbytes[vertex]

    def nodes(self, roots: Collection[int]) -> set[int]:
        """Return the nodes of the graphs of ``roots``, without nodes of leaves.

        Nodes that only saved tensors lead to are left out: torch makes new ones for a view of a
        changed base.
        """
        waiting = [*roots, *(below for root in roots for below in self._below.get(root, ()))]
        found: set[int] = set()
        while waiting:
            vertex = waiting.pop()
            if vertex >= self._rows and vertex not in found:
                found.add(vertex)
                waiting += self._below.get(vertex, ())
        return {each for each in found if self._types[each - self._rows] != LEAF}

    def nearest(self, roots: Sequence[int], most: int) -> dict[int, dict[int, EdgePath | None]]:
        """Return the paths to each vertex from its ``most`` nearest roots, by root, nearest first.

        A root is not its own root, but it may be below another.
        """
        found: dict[int, dict[int, EdgePath | None]] = {}
        waiting: deque[tuple[int, int, EdgePath | None]] = deque(
            (root, root, None) for root in roots
        )
        while waiting:
            vertex, root, path = waiting.popleft()
            for below in self._below.get(vertex, ()):
                known = found.setdefault(below, {})
                if below != root and root not in known and len(known) < most:
                    edge = vertex, below
                    known[root] = following = (path, edge) if edge in self._texts else path
                    waiting.append((below, root, following))
        return found

    def references_of_path(self, path: EdgePath | None) -> tuple[Reference, ...]:
        """Return the references of a path."""
        edges = []
        while path is not None:
            path, edge = path
            edges.append(edge)
        return tuple(
            reference for edge in reversed(edges) for reference in self.references_between(edge)
        )

    def references_between(self, vertices: Sequence[int]) -> tuple[Reference, ...]:
        """Return the references from each vertex to the next."""
        found = []
        for above, below in pairwise(vertices):
            kind, text = self._texts.get((above, below), ("", ""))
            if kind:
                found.append(Reference(kind, text, self._type(below)))
        return tuple(found)

    def path_to_grad_fn(self, root: int) -> tuple[Reference, ...]:
        """Return the path from a tensor to a graph: ``grad_fn``, or ``grad``, ``grad_fn``."""
        for path in ((root,), *((root, below) for below in self._below.get(root, ()))):
            for below in self._below.get(path[-1], ()):
                if self._texts.get((path[-1], below), ("", ""))[1] == "grad_fn":
                    return self.references_between([*path, below])
        return ()

    def first_reference(self, root: int) -> tuple[Reference, ...]:
        """Return the first reference of a tensor, such as that to its gradient."""
        below = self._below.get(root, ())
        return self.references_between([root, below[0]]) if below else ()

    def _type(self, vertex: int) -> str:
        return "Tensor" if vertex < self._rows else self._types[vertex - self._rows]


def _saved_text(saved: Saved) -> str:
    if saved.region is not None:
        return saved.argument
    packed = f" (packed by {saved.packed_by})" if saved.packed_by is not None else ""
    return f"{class_name(saved.node)}.{saved.argument}{packed}"
