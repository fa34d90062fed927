"""NumPy arrays, which the collector does not track, and their holders."""

from __future__ import annotations

import bisect
import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, filterfalse, repeat
from operator import is_not
from typing import Any

from tensorlens.heap import select
from tensorlens.heap.attributes import MODULES, is_subtype

_BATCH = 20_000
"""Objects whose referents are fetched in one call."""


def arrays_in(blocks: Sequence[tuple[int, int]], objects: list[Any]) -> dict[int, list[Any]]:
    """Return the arrays whose memory lies in the given blocks, by the block's address.

    An array is found if an object of the heap refers to it, or a tuple in one; not if only a
    variable of a running function does.

    Args:
        blocks: ``(address, bytes)`` of each.
        objects: the heap.
    """
    found: dict[int, list[Any]] = {}
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    if not blocks or not isinstance(kind, type):
        return found
    ordered = sorted(blocks)
    starts = [address for address, _ in ordered]
    for array in chain.from_iterable(arrays for _, arrays in _arrays(kind, objects)):
        data = _memory_of(array)
        if data is None:
            continue
        place = bisect.bisect_right(starts, data) - 1
        if place >= 0 and data < starts[place] + max(ordered[place][1], 1):
            found.setdefault(starts[place], []).append(array)
    return found


def _memory_of(array: Any) -> int | None:
    """Return the address of an array's memory; None if the array owns it."""
    kind = sys.modules["numpy"].ndarray
    if kind.base.__get__(array) is None:
        return None
    return int(kind.__array_interface__.__get__(array)["data"][0])


def shown(arrays: Sequence[Any]) -> int:
    """Return the bytes of the largest array."""
    return max(int(sys.modules["numpy"].ndarray.nbytes.__get__(array)) for array in arrays)


def bases_of(arrays: Iterable[Any]) -> list[Any]:
    """Return the objects that own the memory of arrays, once for each array that refers to one.

    A view of such an array refers to the array and not to the object, so it adds none.
    """
    kind = sys.modules["numpy"].ndarray
    owners: dict[int, Any] = {}
    for array in arrays:
        base = kind.base.__get__(array)
        while is_subtype(type(base), kind):
            array, base = base, kind.base.__get__(base)
        owners[id(array)] = base
    return [*owners.values()]


def _arrays(kind: type, objects: list[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield batches of holders, tuples in them included, with the arrays first found in each."""
    wanted = (kind, tuple)
    seen: set[int] = set()
    for start in range(0, len(objects), _BATCH):
        some = objects[start : start + _BATCH]
        # no modules: that of _asyncio refers to freed objects in 3.12; their dicts are in the heap
        holders = [*compress(some, map(is_not, map(type, some), repeat(MODULES)))]
        found, tuples, dicts = select(gc.get_referents(*holders), wanted, (dict,))
        # many tuples may refer to the same tuple
        known: dict[int, Any] = {}
        while inside := _fresh(tuples, dicts, known):
            inner, tuples, dicts = select(gc.get_referents(*inside), wanted, (dict,))
            found += inner
            holders += inside
        fresh = {id(array): array for array in found if id(array) not in seen}
        seen.update(fresh)
        yield holders, [*fresh.values()]


def _fresh(tuples: list[Any], dicts: list[Any], known: dict[int, Any]) -> list[Any]:
    """Return the tuples and untracked dicts that are not in ``known``, and add them to it."""
    inside = [*tuples, *filterfalse(gc.is_tracked, dicts)]
    met = dict(zip(map(id, inside), inside, strict=True))
    fresh = [each for place, each in met.items() if place not in known]
    known.update(met)
    return fresh


_PLAIN = (list, deque)


@dataclass(frozen=True, slots=True, eq=False)
class OwnedArray:
    """An array with its size and where it is held."""

    array: Any
    nbytes: int
    held_in: int
    """Address of the list or deque that holds it, or of the class of any other holder."""


def owned_arrays(objects: list[Any]) -> list[OwnedArray]:
    """Return each array of NumPy's own class that owns memory, as :func:`arrays_in` finds it."""
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    if not isinstance(kind, type):
        return []
    base, size = kind.__dict__["base"].__get__, kind.__dict__["nbytes"].__get__
    found = []
    for holders, arrays in _arrays(kind, objects):
        owned = [each for each in arrays if type(each) is kind and base(each) is None]
        held_in = _held_in(kind, holders) if owned else {}
        found += [OwnedArray(each, size(each), held_in.get(id(each), 0)) for each in owned]
    return found


def _held_in(kind: type, holders: list[Any]) -> dict[int, int]:
    """Return ``held_in`` of :class:`OwnedArray` by the array's address."""
    found: dict[int, int] = {}
    for holder in holders:
        for each in gc.get_referents(holder):
            if type(each) is kind:
                is_plain = any(type(holder) is plain for plain in _PLAIN)
                found[id(each)] = id(holder) if is_plain else id(type(holder))
    return found
