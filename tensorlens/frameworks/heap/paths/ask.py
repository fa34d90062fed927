"""Who refers to some objects: the collector's answer, without ever holding a tuple.

A tuple is made in steps, and whoever makes it fails if someone else holds it when another thread
gets its turn in between. So each question is one call into C, and of tuples it brings home their
addresses and copies of their items.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain, compress, repeat, starmap, tee
from operator import is_, is_not, itemgetter
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """Who refers to the objects asked for."""

    holders: list[Any]
    """All but tuples."""
    addresses: list[int]
    """Of the tuples."""
    items: list[list[Any]]
    """What is in each tuple."""


def ask(objects: list[Any], hops: int = 0) -> Answer:
    """Return who refers to ``objects``, or to the tuples that do so over ``hops`` tuples.

    What the collector does not track or was told to freeze is not found.
    """
    # tells the tuples that a question is put with from others: since 3.13 they are found too
    mark = object()
    source: Iterator[Any] = chain.from_iterable(starmap(gc.get_referrers, [(mark, *objects)]))
    for _ in range(hops):
        # of its own: the tuple is in the making while the question before is answered
        mark = object()
        # taken from the list, an iterator is gone before the collector could find it
        tuples = map([chain([mark], _tuples(source))].pop, (0,))
        source = chain.from_iterable(starmap(gc.get_referrers, map(tuple, tuples)))
    first, types, second = tee(source, 3)
    again, third = tee(_tuples(second))
    # a tuple that is being made has empty places, which only the collector expects
    items, ends = tee(map(gc.get_referents, third))
    kept, kept_too = tee(map(is_not, map(itemgetter(-1), ends), repeat(mark)))
    # nothing but the list may refer to them: at their ends they still hold what they passed on
    streams: list[Iterator[Any]] = [
        compress(first, map(is_not, map(type, types), repeat(tuple))),
        compress(map(id, again), kept),
        compress(items, kept_too),
    ]
    del source, first, types, second, third, again, items, ends, kept, kept_too
    holders, addresses, contents = map(list, map(streams.pop, (0, 0, 0)))
    for each in contents:
        # the collector begins with the last
        each.reverse()
    return Answer(holders, addresses, contents)


def _tuples(found: Iterator[Any]) -> Iterator[Any]:
    first, second = tee(found)
    return compress(first, map(is_, map(type, second), repeat(tuple)))
