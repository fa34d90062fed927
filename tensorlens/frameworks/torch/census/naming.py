"""The names and roles that objects are given while a census goes on."""

from __future__ import annotations

from array import array
from typing import Any

from tensorlens.records.names import Names
from tensorlens.records.tensors import ROLES

_NUMBERS = {role: number for number, role in enumerate(ROLES)}


class Naming:
    """Object address to name and role; the first name given to an object is its own."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.given: dict[int, tuple[int, int]] = {}
        """Address to ``(node, number of the role)``."""
        self.more: dict[int, list[int]] = {}
        """Address to the nodes of further names: tied weights."""
        self.items: list[Any] = []
        """The named objects: some came into Python only now, and must live on until the end."""

    def give(self, item: Any, node: int, role: str, *, again: bool = True) -> None:
        """Name an object; ``again`` keeps a second name beside its first."""
        address = id(item)
        if address not in self.given:
            self.given[address] = (node, _NUMBERS[role])
            self.items.append(item)
        elif again:
            self.more.setdefault(address, []).append(node)

    def node_of(self, item: Any) -> int | None:
        """Return the name an object has been given, or None."""
        given = self.given.get(id(item))
        return None if given is None else given[0]

    def addresses(self) -> array[int]:
        """Return the addresses of the named objects, in order."""
        return array("Q", self.given)
