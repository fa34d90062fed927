"""The names and roles that objects are given while a census goes on."""

from __future__ import annotations

from array import array
from typing import Any

from tensorlens.records.names import Names
from tensorlens.roles import ROLES, Role

_NUMBERS = {role: number for number, role in enumerate(ROLES)}


class Naming:
    """Names given to objects, in order; the first given to an object is its own."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.items: list[Any] = []
        """The objects: some came into Python only now, and must live on until the end.

        One may be there again.
        """
        self.nodes = array("i")
        """The name that each was given."""
        self.roles = array("b")
        """The number of the role that came with each node."""
        self.again = array("b")
        """Whether a node is kept beside the first of its object: tied weights."""
        self._first: dict[int, int] = {}
        self._looked_up = 0

    def give(self, item: Any, node: int, role: Role, *, again: bool = True) -> None:
        """Name an object; ``again`` keeps a second name beside its first."""
        self.items.append(item)
        self.nodes.append(node)
        self.roles.append(_NUMBERS[role])
        self.again.append(again)

    @property
    def addresses(self) -> array[int]:
        """The addresses of :attr:`items`."""
        return array("Q", map(id, self.items))

    def node_of(self, item: Any) -> int | None:
        """Return the name an object has been given, or None."""
        for index in range(self._looked_up, len(self.items)):
            self._first.setdefault(id(self.items[index]), self.nodes[index])
        self._looked_up = len(self.items)
        return self._first.get(id(item))
