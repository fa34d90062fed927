"""The names and roles that objects are given while a census goes on."""

from __future__ import annotations

from array import array
from typing import Any

from tensorlens.frameworks.heap.walk import Given, Walk
from tensorlens.records.names import Names
from tensorlens.roles import ROLES

_NUMBERS = {role: number for number, role in enumerate(ROLES)}


class Naming:
    """What was given to objects, in order; the first name given to an object is its own."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.given = Given()
        """Addresses, and the node that each was given: an object may be there again."""
        self.roles = array("b")
        """The number of the role that came with each node."""
        self.again = array("b")
        """Whether a node is kept beside the first of its object: tied weights."""
        self.items: list[Any] = []
        """The objects: some came into Python only now, and must live on until the end."""
        self._nodes: dict[int, int] = {}
        self._looked_up = 0

    def give(self, item: Any, node: int, role: str, *, again: bool = True) -> None:
        """Name an object; ``again`` keeps a second name beside its first."""
        self.given.addresses.append(id(item))
        self.given.nodes.append(node)
        self.roles.append(_NUMBERS[role])
        self.again.append(again)
        self.items.append(item)

    def give_all(self, walk: Walk, roles: tuple[str, str], *, again: bool) -> None:
        """Name what a walk met; the second of ``roles`` is that of buffers."""
        other, buffer = map(_NUMBERS.__getitem__, roles)
        self.given.addresses.extend(walk.addresses)
        self.given.nodes.extend(walk.nodes)
        shift = bytes((other, buffer)) + bytes(254)
        self.roles.frombytes(walk.buffers.tobytes().translate(shift))
        self.again.extend(array("b", [again]) * len(walk.nodes))
        self.items.extend(walk.tensors)

    def node_of(self, item: Any) -> int | None:
        """Return the name an object has been given, or None."""
        addresses, nodes = self.given.addresses, self.given.nodes
        for index in range(self._looked_up, len(addresses)):
            self._nodes.setdefault(addresses[index], nodes[index])
        self._looked_up = len(addresses)
        return self._nodes.get(id(item))
