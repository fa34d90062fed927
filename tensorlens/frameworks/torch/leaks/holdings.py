"""One search of the heap: holders of blocks of torch's memory, and the memory below tensors."""

from __future__ import annotations

import ctypes
import functools
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import torch

from tensorlens.frameworks.retention import Holder, Retained, Survivor
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.census.graph import node_types
from tensorlens.frameworks.torch.census.live_tensors import FoundTensors
from tensorlens.frameworks.torch.census.names.named_rows import NamedRows
from tensorlens.frameworks.torch.census.names.owners import HEAP_CLASSES, Owners
from tensorlens.frameworks.torch.census.undisturbed import undisturbed
from tensorlens.frameworks.torch.leaks.hold_graph import HoldGraph
from tensorlens.heap import Heap, live_objects, select
from tensorlens.heap.attributes import class_name
from tensorlens.heap.untracked_arrays import arrays_in, bases_of, shown
from tensorlens.records.references import Reference
from tensorlens.roles import ROLES

MAX_ROOTS = 5
"""Roots of a block that are given, the nearest."""


class Holdings:
    """Result of one search; only :attr:`survivors` refers to the program's objects.

    The heap is read once, and no code of its objects runs.
    """

    def __init__(self, addresses: Sequence[int]) -> None:
        """Search for the holders of the blocks at ``addresses``: first bytes of storages."""
        with undisturbed() as can_read:
            view = _HeapView(addresses, can_read)
            self._graph = view.graph
            self._role = view.names.role
            self._roots = view.holding
            self._shown = {address for address, _ in view.graph.storages(view.roots)}
            self._shown.update(view.arrays)
            self.survivors = [view.survivor(address) for address in addresses]
            """One for each address, in order."""
            self._vertex_of = self._numbered(view.roots)
            view.graph.release()
            del view
        wanted = frozenset(addresses)
        memory = ({address for address, _ in self._graph.storages([each])} for each in self._roots)
        self._other_roots = {
            root for root, own in zip(self._roots, memory, strict=True) if not own & wanted
        }
        self._below_others = self._graph.reach(self._other_roots)

    def below(self, roots: Sequence[Any], group: Sequence[Any] = ()) -> Retained:
        """Return the memory that only ``roots`` keep alive, without their own.

        It hangs below them and below no other tensor or node that Python holds, and no tensor,
        array or storage that Python holds shows it.

        Args:
            roots: some of the ``tensors`` and ``holders`` of the survivors.
            group: tensors that do not count as other holders: the rest of a leak.

        Raises:
            KeyError: an item is no tensor or holder of a survivor.
        """
        mine = self._vertices(roots)
        apart = {*mine, *self._vertices(group)}
        if apart & self._other_roots:
            others = self._graph.reach(root for root in self._roots if root not in apart)
        else:
            rest = (root for root in self._roots if root not in apart)
            others = self._graph.reach((*self._below_others, *rest))
        reached = sorted(self._graph.reach(mine))
        nodes = len(self._graph.nodes(mine) - others)
        sizes = dict(self._graph.storages(reached))
        excluded = self._shown.union(address for address, _ in self._graph.storages(others))
        roles: dict[int, int] = {}
        for vertex in reached:
            for address, _ in self._graph.storages([vertex]):
                roles[address] = min(roles.get(address, len(ROLES)), self._role[vertex])
        own = tuple(
            (address, size, ROLES[roles[address]])
            for address, size in sizes.items()
            if address not in excluded
        )
        nbytes = sum(size for _, size, _ in own)
        return Retained(nbytes, len(own), self._references(mine, len(own)), own, nodes)

    def _numbered(self, roots: Mapping[int, Any]) -> dict[int, int]:
        """Return the vertices of the survivors' tensors and holders, by ``id()``."""
        kept = {id(tensor) for each in self.survivors for tensor in each.tensors}
        kept.update(id(holder.item) for each in self.survivors for holder in each.holders)
        return {id(item): vertex for vertex, item in roots.items() if id(item) in kept}

    def _vertices(self, items: Sequence[Any]) -> list[int]:
        return [self._vertex_of[id(item)] for item in items]

    def _references(self, roots: list[int], count: int) -> tuple[Reference, ...]:
        if not count:
            return ()
        plural = "" if count == 1 else "s"
        entry = next(filter(None, map(self._graph.path_to_grad_fn, roots)), None)
        if entry is None:
            # no graph: gradients, parts of a sparse tensor
            return next(filter(None, map(self._graph.first_reference, roots)), ())
        saved = Reference("saved", f"{count} saved activation{plural}", "Tensor", length=count)
        return (*entry, saved)


class _HeapView:
    """The heap at one moment: to be dropped at once."""

    def __init__(self, addresses: Sequence[int], can_read: Callable[[], bool]) -> None:
        objects = live_objects()
        heap = select(objects, HEAP_CLASSES, node_types())
        tensors, functions, modules, optimizers, nodes = heap
        # before anything else here refers to the tensors
        counts = _tensor_references(tensors, objects)
        nodes += functions
        functions.clear()
        node_counts = _counts(nodes, objects)
        in_heap = list(tensors)
        owners = Owners((), objects, modules, optimizers)
        self.found = FoundTensors(tensors, owners.naming, nodes, can_read)
        self.graph = HoldGraph(self.found)
        rows = self.found.scan.rows_of(array("Q", map(id, in_heap)))
        self.sizes = _sizes(addresses, self.graph)
        self.arrays = arrays_in([*self.sizes.items()], objects)
        inside = self.graph.references_inside
        for arrays in self.arrays.values():
            inside.update(map(id, bases_of(arrays)))
        self.roots: dict[int, Any] = {
            row: tensor
            for row, tensor, count in zip(rows, in_heap, counts, strict=True)
            if row >= 0 and count > inside[id(tensor)]
        }
        """Tensors and nodes that Python refers to, by vertex."""
        held = self.graph.held_vertices()
        vertices = self.graph.vertices_of(nodes)
        for vertex, node, count in zip(vertices, nodes, node_counts, strict=True):
            if count > (vertex in held and _is_kept(node)):
                self.roots[vertex] = node
        self.names = NamedRows(self.found, owners, Heap(objects))
        self.holding = [vertex for vertex in self.roots if self.graph.holds_anything(vertex)]
        """The roots that something hangs below."""
        self._nearest = self.graph.nearest(self.holding, MAX_ROOTS)
        self._rows: dict[int, list[int]] = {}
        for row, address in enumerate(self.graph.storage):
            if address in self.sizes:
                self._rows.setdefault(address, []).append(row)

    def _described(self, vertex: int) -> Survivor:
        """Describe a root."""
        scan, names = self.found.scan, self.names
        if vertex >= len(scan):
            return Survivor(0, 0, grad_fn=class_name(self.roots[vertex]))
        node = self.found.makers.get(vertex)
        return Survivor(
            address=self.graph.storage[vertex],
            size=self.graph.nbytes[vertex],
            name="" if names.node[vertex] < 0 else names.names[names.node[vertex]],
            dtype=scan.dtypes[scan.dtype[vertex]],
            shape=scan.shapes[scan.shape[vertex]],
            shown=scan.nbytes[vertex],
            grad_fn=None if node is None else class_name(node),
        )

    def survivor(self, address: int) -> Survivor:
        """Return what is known of the block at an address."""
        rows = self._rows.get(address, [])
        held = [row for row in rows if row in self.roots]
        arrays = tuple(self.arrays.get(address, ()))
        holders = self._holders(rows)
        size = self.sizes[address]
        bytes_shown = min(shown(arrays), size) if arrays else 0
        best = self._best(held or rows)
        if best is None:
            return Survivor(address, size, (), arrays, shown=bytes_shown)
        scan, names = self.found.scan, self.names
        made = (self.found.makers.get(row) for row in held)
        node = next((each for each in made if each is not None), None)
        # a tensor that only an array holds may show all, the array a part
        if held or not arrays:
            sizes = (min(scan.nbytes[row], size) for row in held or rows)
            bytes_shown = max(bytes_shown, *sizes)
        named = self._best([row for row in rows if names.node[row] >= 0])
        return Survivor(
            address=address,
            size=size,
            tensors=tuple(self.roots[row] for row in held),
            arrays=arrays,
            holders=holders,
            role=ROLES[min(names.role[row] for row in rows)],
            name="" if named is None else names.names[names.node[named]],
            dtype=scan.dtypes[scan.dtype[best]],
            shape=scan.shapes[scan.shape[best]],
            shown=bytes_shown,
            grad_fn=None if node is None else class_name(node),
        )

    def _best(self, rows: Sequence[int]) -> int | None:
        scan, role = self.found.scan, self.names.role
        return min(
            rows,
            key=lambda row: (role[row], scan.nbytes[row] < scan.storage_nbytes[row], row),
            default=None,
        )

    def _holders(self, rows: Sequence[int]) -> tuple[Holder, ...]:
        found: dict[int, Holder] = {}
        for row in rows:
            for root, path in self._nearest.get(row, {}).items():
                # a tensor that shows the block is no holder above it
                if root not in rows and root not in found and len(found) < MAX_ROOTS:
                    references = self.graph.references_of_path(path)
                    found[root] = Holder(self.roots[root], references, self._described(root))
        return tuple(found.values())


def _sizes(addresses: Sequence[int], graph: HoldGraph) -> dict[int, int]:
    """Return the bytes of each block; 0 if unknown."""
    sizes = cpu.block_sizes(addresses)
    for address, size in zip(graph.storage, graph.nbytes, strict=True):
        if address in sizes:
            sizes[address] = size
    return sizes


def _tensor_references(tensors: list[Any], objects: list[Any]) -> array[int]:
    """Return the number of Python's references to each tensor, without those of the two lists.

    A tensor that autograd saved keeps its Python object, and the collector shows that object
    although nothing in Python refers to it. Only the reference count tells such objects.
    """
    counts = _counts(tensors, objects)
    is_held = _is_held_by_torch()
    for index, tensor in enumerate(tensors):
        counts[index] -= is_held(tensor)
    return counts


def _is_kept(node: Any) -> bool:
    """Return whether torch holds the Python object of a node for as long as it needs the node.

    It does for nodes of custom functions, whose content is in that object, and since torch 2.13
    for all nodes.
    """
    return issubclass(type(node), torch._C._FunctionBase) or _keeps_nodes()


def _counts(items: list[Any], objects: list[Any]) -> array[int]:
    """Return the number of references to each item, without those of the two lists."""
    # an object in the two lists and nowhere else has as many references as are ours
    items.append(object())
    objects.append(items[-1])
    counts = array("q", map(sys.getrefcount, items))
    ours = counts.pop()
    del items[-1], objects[-1]
    return array("q", map(int.__sub__, counts, repeat(ours)))


@functools.cache
def _is_held_by_torch() -> Callable[[Any], bool]:
    """Return a function that tells whether torch holds the Python object of a tensor.

    torch 2.13 does while it refers to the tensor itself. Older versions do only once Python has
    dropped the object, and set a flag behind the object's header.
    """
    use_count = getattr(torch._C.TensorBase, "_use_count", None)
    if use_count is None or not _is_held_when_shared(use_count):
        return lambda tensor: bool(
            ctypes.c_bool.from_address(id(tensor) + object.__basicsize__).value
        )
    return lambda tensor: bool(use_count(tensor) > 1)


def _is_held_when_shared(use_count: Callable[[Any], int]) -> bool:
    with torch.inference_mode(False), torch.enable_grad():
        alone, shared = (torch.zeros(1, requires_grad=True) for _ in range(2))
        # neg() saves nothing, so that no hook of the program's runs
        kept: Sequence[Any] = (shared.neg(),)
    counts = sys.getrefcount(shared) - sys.getrefcount(alone)
    return len(kept) == counts == 1 and use_count(shared) > use_count(alone) == 1


@functools.cache
def _keeps_nodes() -> bool:
    with torch.inference_mode(False), torch.enable_grad():
        made = torch.zeros(1, requires_grad=True).neg()
    node = made.grad_fn
    before = sys.getrefcount(node)
    del made
    return sys.getrefcount(node) < before
