"""Who refers to some objects: the collector's answer, without ever holding a tuple.

A tuple is made in steps, and whoever makes it fails if someone else holds it when another thread
gets its turn in between. So each question is one call into C, and of tuples it brings home their
addresses and copies of their items.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Iterator
from itertools import chain, compress, count, repeat, starmap, tee
from operator import and_, is_, is_not
from typing import Any, NamedTuple

_TEE = vars(itertools)["_tee_dataobject"]


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
    arguments, spent = tee(iter([tuple(objects)]))
    source: Iterator[Any] = chain.from_iterable(starmap(gc.get_referrers, arguments))
    for _ in range(hops):
        arguments, passed = tee(map(tuple, [_tuples(source)]))
        source = chain.from_iterable(starmap(gc.get_referrers, arguments))
        spent = chain(spent, passed)
    del arguments
    first, types, second, third = tee(source, 4)
    # nothing but the list may refer to them: at their ends they still hold what they passed on
    streams: list[Iterator[Any]] = [
        compress(first, map(is_not, map(type, types), repeat(tuple))),
        map(id, _tuples(second)),
        map(list, _tuples(third)),
        map(id, spent),
    ]
    del source, spent, first, types, second, third
    if hops:
        del passed
    holders, addresses, items, own = map(list, map(streams.pop, (0, 0, 0, 0)))
    # since 3.13 the collector also finds the tuples that a question is put with
    for place in reversed([*compress(count(), map(own.__contains__, addresses))]):
        del addresses[place], items[place]
    # what the iterators above had passed on; by now nobody else refers to it
    passing = map(is_, map(type, holders), repeat(_TEE))
    unused = map((2).__ge__, map(sys.getrefcount, holders))
    for place in reversed([*compress(count(), map(and_, passing, unused))]):
        del holders[place]
    return Answer(holders, addresses, items)


def _tuples(found: Iterator[Any]) -> Iterator[Any]:
    first, second = tee(found)
    return compress(first, map(is_, map(type, second), repeat(tuple)))
