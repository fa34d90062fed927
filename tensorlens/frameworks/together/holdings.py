"""Who keeps blocks alive, asked in several frameworks: each knows its own tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensorlens.frameworks.survivors import Below, Holdings, Hung, Survivor


class JoinedHoldings:
    """What one look in each of several frameworks gave, for the same addresses.

    Of each block it is what the framework knows that has a tensor in it; the tensors with which
    another one shows the same memory stand beside.
    """

    def __init__(self, parts: Sequence[Holdings]) -> None:
        self._parts = tuple(parts)
        columns = [part.survivors for part in self._parts]
        self._part_of: dict[int, int] = {}
        """Object to whose it is, by ``id()``; the survivors keep it alive."""
        for number, column in enumerate(columns):
            for each in column:
                for item in (*each.tensors, *(holder.item for holder in each.holders)):
                    self._part_of.setdefault(id(item), number)
        self.survivors = [_best(column) for column in zip(*columns, strict=True)]
        """One for each address, in order."""

    def root(self, item: Any) -> Hung:
        """Return what is known of one of the survivors' holders.

        Raises:
            KeyError: it is none of them.
        """
        return self._parts[self._part_of[id(item)]].root(item)

    def below(self, roots: Sequence[Any], group: Sequence[Any] = ()) -> Below:
        """Return what is kept alive because of ``roots`` alone, beside themselves.

        Raises:
            KeyError: one of them is none of the survivors' tensors and holders.
        """
        found = [
            part.below(mine, self._of(number, group))
            for number, part in enumerate(self._parts)
            if (mine := self._of(number, roots))
        ]
        references = (each.references for each in found if each.references)
        return Below(
            sum(each.bytes for each in found),
            sum(each.tensors for each in found),
            next(references, ()),
            tuple(block for each in found for block in each.blocks),
        )

    def _of(self, number: int, items: Sequence[Any]) -> list[Any]:
        # not by an iterator: it would be found to hold them
        return [item for item in items if self._part_of[id(item)] == number]


def _best(column: Sequence[Survivor]) -> Survivor:
    """Return what is known of a block, the framework's first that knows a tensor in it."""
    place = min(range(len(column)), key=lambda number: _rank(column[number]))
    best = column[place]
    for number, other in enumerate(column):
        if number != place:
            best = _with(best, other)
    return best


def _rank(survivor: Survivor) -> int:
    if survivor.dtype or survivor.holders or survivor.saved or survivor.cycle:
        return 0
    return 2 if survivor.is_held_unseen else 1


def _with(survivor: Survivor, other: Survivor) -> Survivor:
    """Add what holds the same block in another framework."""
    if other.is_held_unseen:
        return replace(survivor, size=survivor.size or other.size)
    return replace(
        survivor,
        size=survivor.size or other.size,
        tensors=_union(survivor.tensors, other.tensors),
        arrays=_union(survivor.arrays, other.arrays),
        storages=_union(survivor.storages, other.storages),
        holders=(*survivor.holders, *other.holders),
        capsules=_union(survivor.capsules, other.capsules),
        # a cycle that alone holds it: it is not alone
        cycle=other.cycle if survivor.is_held_unseen else (),
        shown=max(survivor.shown, other.shown),
    )


def _union(items: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
    known = {id(item) for item in items}
    return (*items, *[item for item in others if id(item) not in known])
