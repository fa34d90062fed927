"""Gives every row its one best name, and its role.

In this order: its path in a model or an optimizer; the variable, attribute or container that
holds it; what autograd saved it for; the operator or the line that made it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from tensorlens.frameworks.heap import anchors, hold
from tensorlens.frameworks.torch.census.find import Found
from tensorlens.frameworks.torch.census.graph import ModulesOfNodes, Saved
from tensorlens.frameworks.torch.census.owners import Owners
from tensorlens.records.names import Names
from tensorlens.records.tensors import ROLES

_GRADIENT, _OPTIMIZER = ROLES.index("gradient"), ROLES.index("optimizer")
_ACTIVATION, _INPUT = ROLES.index("activation"), ROLES.index("input")
_OTHER = ROLES.index("other")

_MOST_SAVERS = 3
"""A tensor that many nodes saved is held by the first few and ``... more``."""


class Christened:
    """The names, roles, holders and notes of the rows of ``found.scan``."""

    def __init__(self, found: Found, owners: Owners, objects: list[Any]) -> None:
        """Name every row.

        Args:
            found: the rows.
            owners: the names that models and optimizers gave.
            objects: the heap, to be asked for whatever else holds a tensor.
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
        self._found = found
        self._owners = owners
        self._links = list(_links(found))
        self._paths: dict[str, int] = {}
        self._loose: set[int] = set()
        """Nodes that the names begin with of what no variable leads to."""
        self._dependants = {row for row, _, _, _ in self._links}
        self._apply_given()
        self._apply_roles()
        self._ask_holders(objects)
        self._ask_graph()
        self._name_dependants()

    def _apply_given(self) -> None:
        naming, scan = self._owners.naming, self._found.scan
        rows = scan.rows_of(naming.addresses())
        for row, (node, role) in zip(rows, naming.given.values(), strict=True):
            if row >= 0:
                self.node[row], self.role[row] = node, role
        rows = scan.rows_of(array("Q", naming.more))
        for row, nodes in zip(rows, naming.more.values(), strict=True):
            if row >= 0:
                self.more[row] = (self.node[row], *nodes)

    def _apply_roles(self) -> None:
        grad = self._found.scan.grad
        if grad and max(grad) >= 0:
            for row in grad:
                if row >= 0:
                    self.role[row] = _GRADIENT
        for row in self._found.nonleaf:
            if self.role[row] == _OTHER:
                self.role[row] = _ACTIVATION

    def _ask_holders(self, objects: list[Any]) -> None:
        """Name what is left by the variable, attribute or container that holds it."""
        address = self._found.scan.object
        wanted = [row for row, node in enumerate(self.node) if node < 0]
        if self._dependants or 0 in address:
            hidden = self._dependants
            wanted = [row for row in wanted if address[row] and row not in hidden]
        nameless = self._owners.nameless
        everything = len(wanted) == len(address)
        targets = address[:] if everything else array("Q", map(address.__getitem__, wanted))
        targets.extend(id(module) for module, _ in nameless)
        if not targets:
            return
        places = self._owners.anchors()
        held = hold(objects, targets, {**anchors(), **places}, self.names, loose=self._loose)
        if everything:
            self.node[:] = held[: len(wanted)]
        else:
            for row, node in zip(wanted, held, strict=False):
                self.node[row] = node
        for (_, node), found in zip(nameless, held[len(wanted) :], strict=True):
            if found >= 0:
                self.names.become(node, found)
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
        """Say what autograd saved; name by it what nothing else names."""
        found = self._found
        if not found.saved and not found.nonleaf:
            return
        modules = ModulesOfNodes(found.graph, self._owners.module_paths())
        label = _Labels(modules, self._owners.home)
        for first, several in found.saved.items():
            row = self._row_of_storage(first)
            if row is not None:
                self._describe(row, several, label)
        for row, node in found.nonleaf.items():
            if self.node[row] < 0:
                self.node[row] = self.names.text(label.made_by(node))
            if self.role[row] == _ACTIVATION:
                self._set_module(row, label.module(node))

    def _row_of_storage(self, first: int) -> int | None:
        """Return the row for a storage that autograd saved; None if it is named after another."""
        if first >= self._found.in_python:
            return first
        same = (first, *self._found.sharing.get(first, ()))
        named: list[int] = [row for row in same if self.node[row] >= 0]
        if named:
            return named[0]
        return None if any(row in self._dependants for row in same) else first

    def _describe(self, row: int, several: list[Saved], label: _Labels) -> None:
        # what a node computed belongs to it more than to the nodes that use it
        several = sorted(several, key=lambda saved: not saved.is_result())
        texts = list(dict.fromkeys(label.of(saved) for saved in several))
        node = self.node[row]
        if node < 0 or (self._loose and self.names.root(node) in self._loose):
            self.node[row] = self.names.text(texts.pop(0))
            self.role[row] = _ACTIVATION
            if several[0].is_result():
                self._set_module(row, label.module(several[0].node))
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
        """Name gradients, parts and copies after what they belong to."""
        waiting = [link for link in self._links if self.node[link[0]] < 0]
        # the gradient of a sharded parameter has parts: what it is named after waits, too
        while waiting:
            later = []
            for link in waiting:
                row, owner, suffix, note = link
                if self.node[row] >= 0:
                    continue
                if self.node[owner] < 0:
                    later.append(link)
                    continue
                parent = self.node[owner]
                self.node[row] = self.names.attribute(parent, suffix) if suffix else parent
                if self.role[row] == _OTHER and not suffix == "autocast":
                    self.role[row] = self.role[owner]
                if note is not None:
                    self.notes[row] = note
            if len(later) == len(waiting):
                break
            waiting = later


def _links(found: Found) -> Iterator[tuple[int, int, str, str | None]]:
    """Give ``(row, row it is named after, what is added to that name, note)``."""
    for weight, copy in found.copies:
        yield copy, weight, "autocast", "copy that autocast keeps while it is on"
    for owner, parts in found.parts.items():
        for row, part in parts:
            if row >= 0:
                yield row, owner, part.name, part.note
    grad = found.scan.grad
    if grad and max(grad) >= 0:
        for owner, row in enumerate(grad):
            if row >= 0:
                yield row, owner, "grad", None


class _Labels:
    """Names for what autograd holds: ``layer.0.mlp: GeluBackward0.self``."""

    def __init__(self, modules: ModulesOfNodes, home: str) -> None:
        """``home`` is the class of the one model there is, or empty."""
        self._modules = modules
        self._home = home

    def module(self, node: Any) -> str | None:
        """Return the path of the module a node was made in, or None."""
        path = self._modules.of(node)
        return None if path is None else self._text(path)

    def _text(self, path: tuple[str, ...]) -> str:
        return ".".join(path) or self._home or "model"

    def made_by(self, node: Any) -> str:
        """Return the name of what a node computed."""
        return self._within(node, type(node).__name__)

    def of(self, saved: Saved) -> str:
        """Return the name of what a node saved."""
        if saved.region is None:
            return self._within(saved.node, f"{type(saved.node).__name__}.{saved.argument}")
        path = self._modules.of_all(saved.region)
        return saved.argument if path is None else f"{self._text(path)}: {saved.argument}"

    def _within(self, node: Any, text: str) -> str:
        path = self.module(node)
        return text if path is None else f"{path}: {text}"
