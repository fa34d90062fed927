"""Names and roles of objects, and the order in which objects were first seen."""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from tensorlens.records.names import Names
from tensorlens.roles import ROLES, Role

_NUMBERS = {role: number for number, role in enumerate(ROLES)}


class Naming:
    """Names of objects, in the order of addition; an object's first name is its own."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.items: list[Any] = []
        """The objects, kept alive until the census ends; one with two names is there twice."""
        self.nodes = array("i")
        """The name of each item."""
        self.roles = array("b")
        """The role of each item, as an index of :data:`~tensorlens.roles.ROLES`."""
        self.keeps_second = array("b")
        """Whether the name is kept beside an earlier one of the same object: tied weights."""
        self._first: dict[int, int] = {}
        self._looked_up = 0

    def add(self, item: Any, node: int, role: Role, keeps_second: bool = True) -> None:
        """Name an object; ``keeps_second`` keeps this name beside an earlier one."""
        self.items.append(item)
        self.nodes.append(node)
        self.roles.append(_NUMBERS[role])
        self.keeps_second.append(keeps_second)

    @property
    def addresses(self) -> array[int]:
        """Addresses of :attr:`items`."""
        return array("Q", map(id, self.items))

    def first_nodes(self) -> Mapping[int, int]:
        """Map an object's address to its first name."""
        if self._looked_up < len(self.items):
            items, nodes = self.items[self._looked_up :], self.nodes[self._looked_up :]
            new = dict(zip(map(id, reversed(items)), reversed(nodes), strict=True))
            self._first = {**new, **self._first}
            self._looked_up = len(self.items)
        return self._first


class FirstSeenOrder:
    """An order of objects that lasts; does not keep them alive.

    The collector keeps objects by generation, so the order of the heap changes with every
    collection, and numbers in names would change with it.
    """

    def __init__(self) -> None:
        # by address: a user's class may define __eq__ and __hash__
        self._seen: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._numbers = itertools.count()

    def ordered(self, items: Sequence[Any]) -> list[Any]:
        """Return ``items`` in the order in which they were first seen.

        New ones are ordered by age, as far as the collector tells.
        """
        new = [item for item in items if id(item) not in self._seen]
        for item in _by_age(new):
            reference = weakref.ref(item, functools.partial(self._forget, id(item)))
            self._seen[id(item)] = reference, next(self._numbers)
        return sorted(items, key=lambda item: self._seen[id(item)][1])

    def _forget(self, address: int, reference: weakref.ref[Any]) -> None:
        # another object may have the address by now
        if self._seen.get(address, (None,))[0] is reference:
            del self._seen[address]


def _by_age(items: list[Any]) -> list[Any]:
    if len(items) < 2:
        return items
    ages = {id(item): 2 for item in items}
    for age in (0, 1):
        # in one call: a tuple that another thread is filling must not be referenced meanwhile
        young = set(map(id, itertools.chain.from_iterable(map(gc.get_objects, (age,)))))
        ages.update(dict.fromkeys(young & ages.keys(), age))
    return sorted(items, key=lambda item: -ages[id(item)])


first_seen = FirstSeenOrder()
