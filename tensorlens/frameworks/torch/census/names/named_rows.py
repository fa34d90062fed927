"""Gives every row its one best name, and its role.

In this order: its path in a model or an optimizer; the variable, attribute or container that
holds it; what autograd saved it for; the operator or the line that made it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

from tensorlens.frameworks.torch.census.graph import Saved
from tensorlens.frameworks.torch.census.live_tensors import FoundTensors
from tensorlens.frameworks.torch.census.names.labels import Labels, Path, Users, path_of_user
from tensorlens.frameworks.torch.census.names.owners import Owners
from tensorlens.heap import Heap, anchors, find_holders
from tensorlens.records.names import Names, common_path
from tensorlens.roles import ROLES

_GRADIENT, _OPTIMIZER = ROLES.index("gradient"), ROLES.index("optimizer")
_ACTIVATION, _INPUT = ROLES.index("activation"), ROLES.index("input")
_OTHER = ROLES.index("other")

_OF_CHECKPOINT = "closure of _checkpoint"
_MOST_SAVERS = 3
"""A tensor that many nodes saved is held by the first few and ``... more``."""


class NamedRows:
    """The names, roles, holders and notes of the rows of ``found.scan``."""

    def __init__(self, found: FoundTensors, owners: Owners, heap: Heap) -> None:
        """Name every row.

        Args:
            found: the rows.
            owners: the names that models and optimizers gave.
            heap: is asked for whatever else holds a tensor.
        """
        total = len(found.scan.nbytes)
        self.names: Names = owners.naming.names
        self.node = array("i", [-1]) * total
        """Row to its name; -1 for rows that stand for nothing of their own."""
        self.role = array("b", [_OTHER]) * total
        self.module: dict[int, int] = {}
        self.more: dict[int, tuple[int, ...]] = {}
        """Row to all its names, for tied weights."""
        self.held_by: dict[int, str] = {}
        self.notes: dict[int, str] = {}
        self.of_graph: set[int] = set()
        """Rows that are named by what autograd does with them."""
        self._found = found
        self._owners = owners
        self._links = list(_links(found))
        self._paths: dict[str, int] = {}
        self._loose: set[int] = set()
        """Roots of the names of objects that no variable leads to."""
        self._dependants = {row for row, _, _, _ in self._links}
        self._apply_given()
        self._apply_roles()
        self._name_dependants()
        self._ask_holders(heap)
        self._name_dependants()
        self._ask_graph()
        self._name_dependants()

    def _apply_given(self) -> None:
        naming, nodes, roles = self._owners.naming, self.node, self.role
        columns = self._found.given_rows, naming.nodes, naming.roles, naming.keeps_second
        for row, node, role, keeps_second in zip(*columns, strict=True):
            if row < 0:
                continue
            if nodes[row] < 0:
                nodes[row] = node
                roles[row] = role
            elif keeps_second:
                self.more[row] = (*self.more.get(row, (nodes[row],)), node)

    def _apply_roles(self) -> None:
        for row in self._found.scan.gradients:
            self.role[row] = _GRADIENT
        for row in self._found.makers:
            if self.role[row] == _OTHER:
                self.role[row] = _ACTIVATION

    def _ask_holders(self, heap: Heap) -> None:
        """Name what is left by the variable, attribute or container that holds it."""
        address = self._found.scan.object
        wanted = [row for row, node in enumerate(self.node) if node < 0]
        if self._dependants:
            hidden = self._dependants
            wanted = [row for row in wanted if address[row] and row not in hidden]
        nameless = self._owners.nameless
        everything = len(wanted) == len(address)
        targets = address[:] if everything else array("Q", map(address.__getitem__, wanted))
        targets.extend(id(module) for module, _ in nameless)
        if not targets:
            return
        held = find_holders(
            heap.objects,
            targets,
            {**anchors(only_modules=heap.modules), **self._owners.places},
            self.names,
            loose=self._loose,
            named=self._owners.anchors(),
            tuples=heap.tuples,
        )
        if everything:
            self.node[:] = held[: len(wanted)]
        else:
            for row, node in zip(wanted, held, strict=False):
                self.node[row] = node
        for (_, node), found in zip(nameless, held[len(wanted) :], strict=True):
            if found >= 0:
                self._owners.settle(node, found)
        self._adopt_roles(wanted)

    def _adopt_roles(self, rows: Iterable[int]) -> None:
        """Give what an optimizer holds in an attribute of its own the optimizer's role."""
        names = self.names
        owners = {names.values[node] for node in self._owners.optimizers.anchors.values()}
        if not owners:
            return
        belongs: dict[int, bool] = {-1: False}
        for row in rows:
            node = self.node[row]
            if node < 0:
                continue
            parent = names.parents[node]
            if parent not in belongs:
                root = names.root(parent)
                belongs[parent] = names.values[root] in owners
            if belongs[parent]:
                self.role[row] = _OPTIMIZER

    def _ask_graph(self) -> None:
        """Note what autograd saved, and name by it the rows that have no other name."""
        found = self._found
        if not found.saved_of_storage and not found.makers:
            return
        users = self._owners.parameter_users()
        owners = self._owners
        label = Labels(found.graph, users, self._savers(users), owners.home, owners.path_of)
        for first, pairs in found.saved_of_storage.items():
            # what a node computed belongs to it more than to the nodes that use it
            pairs = sorted(pairs, key=_by_node)
            row = self._row_of_storage(first, pairs[0][1])
            if row is not None:
                self._describe(row, [saved for saved, _ in pairs], label)
        self._forget_loose()
        standing = self.standing()
        for row in found.leaves:
            if self.node[row] < 0 and found.scan.first[row] not in standing:
                self.node[row] = self.names.text("AccumulateGrad.variable")
                self.of_graph.add(row)
        for row, node in found.makers.items():
            if self.node[row] < 0 and found.scan.first[row] not in standing:
                self.node[row] = self.names.text(label.made_by(node))
                self.of_graph.add(row)
            if self.role[row] == _ACTIVATION and row not in self.module:
                self._set_module(row, label.module(node))

    def _savers(self, users: Users) -> dict[Any, Path]:
        """Return the nodes that saved a parameter, each with the path of the module using it."""
        found, addresses = self._found, self._owners.naming.addresses
        owners: dict[int, int] = {}
        for address, row in zip(addresses, found.given_rows, strict=True):
            if row >= 0 and address in users and found.scan.first[row] in found.saved_of_storage:
                owners.setdefault(found.scan.first[row], address)
        savers: dict[Any, Path] = {}
        for first, address in owners.items():
            for saved, _ in found.saved_of_storage[first]:
                if saved.region is None:
                    path = path_of_user(users, address, saved.node)
                    savers[saved.node] = common_path(savers.get(saved.node, path), path)
        return savers

    def _forget_loose(self) -> None:
        """Take back names that no variable leads to, where another row of the storage has one."""
        if not self._loose:
            return
        for first, others in self._found.sharing.items():
            rows = [row for row in (first, *others) if self.node[row] >= 0]
            loose = [row for row in rows if self.names.root(self.node[row]) in self._loose]
            if len(loose) < len(rows):
                for row in loose:
                    self.node[row] = -1

    def standing(self) -> set[int]:
        """Return the storages, by their first rows, that a named row stands for."""
        first = self._found.scan.first
        return {first[row] for row, node in enumerate(self.node) if node >= 0}

    def _row_of_storage(self, first: int, saved: int) -> int | None:
        """Return the row for a storage that autograd saved; None if it is named after another.

        Python's own objects of tensors that only C++ holds come and go: they are passed over for
        the row of what was ``saved`` first.
        """
        if first >= self._found.in_python:
            return saved
        same: list[int] = [first, *self._found.sharing.get(first, ())]
        for row in same:
            if self.node[row] >= 0 and not self._is_loose(row):
                return row
        return None if any(row in self._dependants for row in same) else saved

    def _is_loose(self, row: int) -> bool:
        root = self.names.root(self.node[row])
        if root in self._loose:
            return True
        # torch's own closure: the checkpoint's region says more
        return self.names[root].startswith(_OF_CHECKPOINT)

    def _describe(self, row: int, several: list[Saved], label: Labels) -> None:
        texts = list(dict.fromkeys(label.saved_name(saved) for saved in several))
        if self.node[row] < 0 or self._is_loose(row):
            scan = self._found.scan
            is_part = scan.nbytes[row] < scan.storage_nbytes[row]
            base = label.node_of_storage(several) if is_part else None
            self.node[row] = self.names.text(
                label.made_by(base, ".result") if base else texts.pop(0)
            )
            self.of_graph.add(row)
            self.role[row] = _ACTIVATION
            maker = base or (several[0].node if several[0].is_result() else None)
            if maker is not None:
                self._set_module(row, label.module(maker))
            if several[0].packed_by is not None:
                self.notes[row] = f"packed by a saved-tensor hook ({several[0].packed_by})"
        elif self.role[row] == _OTHER:
            self.role[row] = _INPUT
        if texts and self.role[row] in (_ACTIVATION, _INPUT):
            hidden = len(texts) - _MOST_SAVERS
            more = f", {hidden} more" if hidden > 0 else ""
            self.held_by[row] = ", ".join(texts[:_MOST_SAVERS]) + more

    def _set_module(self, row: int, path: str | None) -> None:
        if path is not None:
            if path not in self._paths:
                self._paths[path] = self.names.text(path)
            self.module[row] = self._paths[path]

    def _name_dependants(self) -> None:
        """Name gradients and parts after what they belong to, where that has a name."""
        before = -1
        # the gradient of a sharded parameter has parts: what it is named after waits, too
        while len(self._links) != before:
            before = len(self._links)
            self._links = [link for link in self._links if not self._name_after(*link)]

    def _name_after(self, row: int, owner: int, suffix: str, note: str | None) -> bool:
        """Name a row after its owner; return whether that is done."""
        parent = self.node[owner]
        if self.node[row] >= 0 or parent < 0:
            return self.node[row] >= 0
        self.node[row] = self.names.attribute(parent, suffix) if suffix else parent
        if self.role[row] in (_OTHER, _ACTIVATION):
            self.role[row] = self.role[owner]
        if note is not None:
            self.notes[row] = note
        return True


def _by_node(pair: tuple[Saved, int]) -> tuple[bool, int, str]:
    saved = pair[0]
    return not saved.is_result(), saved.node._sequence_nr(), saved.argument


def _links(found: FoundTensors) -> Iterator[tuple[int, int, str, str | None]]:
    """Give ``(row, row it is named after, what is added to that name, note)``."""
    for owner, parts in found.parts.items():
        for row, part in parts:
            if row >= 0:
                yield row, owner, part.name, part.note
    owners, gradients = found.scan.owners, found.scan.gradients
    yield from zip(gradients, owners, repeat("grad"), repeat(None))
