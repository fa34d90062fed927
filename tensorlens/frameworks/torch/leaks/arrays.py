"""NumPy arrays that lie in given memory: the collector shows neither them nor what they hold."""

from __future__ import annotations

import bisect
import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tensorlens.frameworks.heap import select
from tensorlens.frameworks.heap.rows import MODULES, is_subtype

_UNTRACKED = (tuple, dict)
"""What the heap does not show although it may hold an array: tuples, and dicts without objects
that the collector looks after."""

_AT_ONCE = 20_000
"""Objects that are asked for their referents in one go."""


def arrays_in(blocks: Sequence[tuple[int, int]], objects: list[Any]) -> dict[int, list[Any]]:
    """Return the arrays whose memory lies in blocks, by the block's address.

    Found are those that an object of the heap refers to, or a tuple in one; not those that only a
    variable of a running function holds.

    Args:
        blocks: ``(address, bytes)`` of each.
        objects: the heap.
    """
    found: dict[int, list[Any]] = {}
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    if not isinstance(kind, type) or not blocks:
        return found
    base, interface = kind.base.__get__, kind.__array_interface__.__get__  # type: ignore[attr-defined]
    ordered = sorted(blocks)
    starts = [address for address, _ in ordered]
    for array in _arrays(kind, objects):
        if base(array) is None:
            # it has memory of its own
            continue
        data = interface(array)["data"][0]
        place = bisect.bisect_right(starts, data) - 1
        if place >= 0 and data < starts[place] + ordered[place][1]:
            found.setdefault(starts[place], []).append(array)
    return found


def shown(arrays: Sequence[Any]) -> int:
    """Return the bytes of the largest of some arrays."""
    return max(int(sys.modules["numpy"].ndarray.nbytes.__get__(array)) for array in arrays)


def bases_of(arrays: Iterable[Any]) -> list[Any]:
    """Return what the memory of arrays comes from, once for each reference to it.

    An array that shows a part of another one refers to that, and not to the other's base.
    """
    kind = sys.modules["numpy"].ndarray
    owners: dict[int, Any] = {}
    for array in arrays:
        base = kind.base.__get__(array)
        while is_subtype(type(base), kind):
            array, base = base, kind.base.__get__(base)
        owners[id(array)] = base
    return [*owners.values()]


def _arrays(kind: type, objects: list[Any]) -> Iterator[Any]:
    seen: set[int] = set()
    for start in range(0, len(objects), _AT_ONCE):
        # _asyncio of Python 3.12 shows freed objects, and a module's dict is an object by itself
        holders = [each for each in objects[start : start + _AT_ONCE] if type(each) is not MODULES]
        arrays, others = select(gc.get_referents(*holders), (kind,), _UNTRACKED)
        del holders
        known: dict[int, Any] = {}
        while inside := [each for each in _each_once(others, known) if not _is_in_heap(each)]:
            inner, others = select(gc.get_referents(*inside), (kind,), _UNTRACKED)
            arrays += inner
        for array in arrays:
            if id(array) not in seen:
                seen.add(id(array))
                yield array


def _each_once(containers: Sequence[Any], known: dict[int, Any]) -> Iterator[Any]:
    """Give those that were not given before: tuples may share tuples many times over."""
    for each in containers:
        if id(each) not in known:
            known[id(each)] = each
            yield each


def _is_in_heap(container: Any) -> bool:
    return type(container) is dict and gc.is_tracked(container)
