"""The best name of each row, and its role.

In this order: its path in a model or an optimizer; the variable, attribute or container that
holds it; the node that saved it; the operator or the line that made it.
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
_MAX_SAVERS = 3
"""Number of nodes in ``held_by``, which ends with ``... more`` if others saved the tensor too."""


class NamedRows:
    """Names, roles, holders and notes of the rows of ``found.scan``."""

    def __init__(self, found: FoundTensors, owners: Owners, heap: Heap) -> None:
        """Name every row.

        Args:
            found: the rows.
            owners: names from models and optimizers.
            heap: where other holders are searched.
        """
        total = len(found.scan.nbytes)
        self.names: Names = owners.naming.names
        self.node = array("i", [-1]) * total
        """Row to the node of its name; -1 for rows that are left out."""
        self.role = array("b", [_OTHER]) * total
        self.module: dict[int, int] = {}
        self.more: dict[int, tuple[int, ...]] = {}
        """Row to all its names: tied weights."""
        self.held_by: dict[int, str] = {}
        self.notes: dict[int, str] = {}
        self.of_graph: set[int] = set()
        """Rows that are named after nodes of autograd."""
        self._found = found
        self._owners = owners
        self._links = list(_links(found))
        self._paths: dict[str, int] = {}
        self._loose: set[int] = set()
        """Roots of the names of objects that no variable holds."""
        self._dependants = {row for row, _, _, _ in self._links}
        self._set_given_names()
        self._set_roles()
        self._name_dependants()
        self._name_by_holders(heap)
        self._name_dependants()
        self._name_by_graph()
        self._name_dependants()

    def _set_given_names(self) -> None:
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

    def _set_roles(self) -> None:
        for row in self._found.scan.gradients:
            self.role[row] = _GRADIENT
        for row in self._found.makers:
            if self.role[row] == _OTHER:
                self.role[row] = _ACTIVATION

    def _name_by_holders(self, heap: Heap) -> None:
        """Name the other rows after the variable, attribute or container that holds them."""
        address = self._found.scan.object
        wanted = [row for row, node in enumerate(self.node) if node < 0]
        if self._dependants:
            dependants = self._dependants
            wanted = [row for row in wanted if address[row] and row not in dependants]
        provisional = self._owners.provisional
        everything = len(wanted) == len(address)
        targets = address[:] if everything else array("Q", map(address.__getitem__, wanted))
        targets.extend(id(module) for module, _ in provisional)
        if not targets:
            return
        held = find_holders(
            heap.objects,
            targets,
            {**anchors(only_modules=heap.modules), **self._owners.places},
            self.names,
            loose=self._loose,
            named=self._owners.anchor_nodes(),
            tuples=heap.tuples,
        )
        if everything:
            self.node[:] = held[: len(wanted)]
        else:
            for row, node in zip(wanted, held, strict=False):
                self.node[row] = node
        for (_, node), found in zip(provisional, held[len(wanted) :], strict=True):
            if found >= 0:
                self._owners.settle(node, found)
        self._set_optimizer_roles(wanted)

    def _set_optimizer_roles(self, rows: Iterable[int]) -> None:
        """Set the role of tensors that an optimizer holds in its own attributes."""
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

    def _name_by_graph(self) -> None:
        """Note which nodes saved tensors, and name rows without another name after them."""
        found = self._found
        if not found.saved_of_storage and not found.makers:
            return
        users = self._owners.parameter_users()
        owners = self._owners
        label = Labels(
            found.graph, users, self._parameter_savers(users), owners.home, owners.path_of
        )
        for first, pairs in found.saved_of_storage.items():
            # a tensor is named after the node that computed it rather than one that uses it
            pairs = sorted(pairs, key=_node_order)
            row = self._row_of_storage(first, pairs[0][1])
            if row is not None:
                self._name_saved(row, [saved for saved, _ in pairs], label)
        self._drop_loose_names()
        named_storages = self.named_storages()
        for row in found.leaves:
            if self.node[row] < 0 and found.scan.first[row] not in named_storages:
                self.node[row] = self.names.text("AccumulateGrad.variable")
                self.of_graph.add(row)
        for row, node in found.makers.items():
            if self.node[row] < 0 and found.scan.first[row] not in named_storages:
                self.node[row] = self.names.text(label.made_by(node))
                self.of_graph.add(row)
            if self.role[row] == _ACTIVATION and row not in self.module:
                self._set_module(row, label.module(node))

    def _parameter_savers(self, users: Users) -> dict[Any, Path]:
        """Map nodes that saved a parameter to the path of the module that uses it."""
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

    def _drop_loose_names(self) -> None:
        """Drop names that begin with no variable if another row of the storage has a name."""
        if not self._loose:
            return
        for first, others in self._found.sharing.items():
            rows = [row for row in (first, *others) if self.node[row] >= 0]
            loose = [row for row in rows if self.names.root(self.node[row]) in self._loose]
            if len(loose) < len(rows):
                for row in loose:
                    self.node[row] = -1

    def named_storages(self) -> set[int]:
        """Return the storages with a named row, as their first rows."""
        first = self._found.scan.first
        return {first[row] for row, node in enumerate(self.node) if node >= 0}

    def _row_of_storage(self, first: int, saved: int) -> int | None:
        """Return the row for a storage that autograd saved; None if it depends on another row.

        Python objects of tensors that only C++ holds come and go: they are skipped in favour of
        the row that was ``saved`` first.
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
        # a closure of torch's: the name of the checkpointed region is better
        return self.names[root].startswith(_OF_CHECKPOINT)

    def _name_saved(self, row: int, several: list[Saved], label: Labels) -> None:
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
            rest = len(texts) - _MAX_SAVERS
            more = f", {rest} more" if rest > 0 else ""
            self.held_by[row] = ", ".join(texts[:_MAX_SAVERS]) + more

    def _set_module(self, row: int, path: str | None) -> None:
        if path is not None:
            if path not in self._paths:
                self._paths[path] = self.names.text(path)
            self.module[row] = self._paths[path]

    def _name_dependants(self) -> None:
        """Name gradients and parts after their owners, if these have names."""
        before = -1
        # repeated, as the gradient of a sharded parameter is an owner of parts itself
        while len(self._links) != before:
            before = len(self._links)
            self._links = [link for link in self._links if not self._name_after(*link)]

    def _name_after(self, row: int, owner: int, suffix: str, note: str | None) -> bool:
        """Name a row after its owner; return whether the row has a name."""
        parent = self.node[owner]
        if self.node[row] >= 0 or parent < 0:
            return self.node[row] >= 0
        self.node[row] = self.names.attribute(parent, suffix) if suffix else parent
        if self.role[row] in (_OTHER, _ACTIVATION):
            self.role[row] = self.role[owner]
        if note is not None:
            self.notes[row] = note
        return True


def _node_order(pair: tuple[Saved, int]) -> tuple[bool, int, str]:
    saved = pair[0]
    return not saved.is_result(), saved.node._sequence_nr(), saved.argument


def _links(found: FoundTensors) -> Iterator[tuple[int, int, str, str | None]]:
    """Yield ``(row, row of its owner, suffix of the name, note)``."""
    for owner, parts in found.parts.items():
        for row, part in parts:
            if row >= 0:
                yield row, owner, part.name, part.note
    owners, gradients = found.scan.owners, found.scan.gradients
    yield from zip(gradients, owners, repeat("grad"), repeat(None))
