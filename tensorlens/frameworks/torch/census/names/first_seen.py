"""The order in which objects were first seen in this process.

The collector keeps its objects by generation, so that the order of the heap changes with every
collection; names that are numbered by it would change, too.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

_YOUNG = (0, 1)


class _Seen(weakref.ref[Any]):
    __slots__ = ("address", "number")

    address: int
    number: int


class FirstSeen:
    """Remembers the objects it has ordered, without keeping them alive."""

    def __init__(self) -> None:
        # by address: a class of the user's may have its own __eq__ and __hash__
        self._seen: dict[int, _Seen] = {}
        self._numbers = itertools.count()

    def ordered(self, items: Sequence[Any]) -> list[Any]:
        """Return ``items``, those seen earlier first: none comes before one it came after.

        Of those that are new the older come first, as far as the collector tells.
        """
        new = [item for item in items if id(item) not in self._seen]
        for item in _by_age(new):
            seen = _Seen(item, self._forget)
            seen.address, seen.number = id(item), next(self._numbers)
            self._seen[id(item)] = seen
        return sorted(items, key=lambda item: self._seen[id(item)].number)

    def _forget(self, reference: weakref.ref[Any]) -> None:
        address = getattr(reference, "address", 0)
        # another object may have the address by now
        if self._seen.get(address) is reference:
            del self._seen[address]


def _by_age(items: list[Any]) -> list[Any]:
    if len(items) < 2:
        return items
    ages = {id(item): len(_YOUNG) for item in items}
    for age in _YOUNG:
        # in one call: a tuple that another thread is making must not be held when that goes on
        young = set(map(id, itertools.chain.from_iterable(map(gc.get_objects, (age,)))))
        ages.update(dict.fromkeys(young & ages.keys(), age))
    return sorted(items, key=lambda item: -ages[id(item)])


first_seen = FirstSeen()
