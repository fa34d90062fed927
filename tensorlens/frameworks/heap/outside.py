"""What holds given memory where the collector does not look: NumPy arrays, DLPack capsules."""

from __future__ import annotations

import bisect
import ctypes
import datetime
import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, filterfalse, repeat
from operator import is_not
from typing import Any, NamedTuple

from tensorlens.frameworks.heap import select
from tensorlens.frameworks.heap.rows import MODULES, is_subtype

_AT_ONCE = 20_000
"""Objects that are asked for their referents in one go."""

# dlpack.h: a tensor begins with its data; a versioned one after the version, two pointers, flags
_STARTS = {b"dltensor": 0, b"dltensor_versioned": 32}
_OFFSET = 40
"""Of ``byte_offset`` in a tensor: data, device, ndim, dtype, shape, strides come before."""

_CAPSULE: type = type(datetime.datetime_CAPI)

_name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Outside(NamedTuple):
    """What holds a framework's memory without the collector's knowing, by the block's address."""

    arrays: dict[int, list[Any]]
    capsules: dict[int, list[Any]]
    """DLPack's, that nobody has taken."""


def outside(blocks: Sequence[tuple[int, int]], objects: list[Any]) -> Outside:
    """Return the arrays and capsules whose memory lies in blocks.

    Found are those that an object of the heap refers to, or a tuple in one; not those that only a
    variable of a running function holds.

    Args:
        blocks: ``(address, bytes)`` of each.
        objects: the heap.
    """
    found = Outside({}, {})
    if not blocks:
        return found
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    kinds = (kind, _CAPSULE) if isinstance(kind, type) else (_CAPSULE,)
    ordered = sorted(blocks)
    starts = [address for address, _ in ordered]
    for holder in _holders(kinds, objects):
        is_capsule = type(holder) is _CAPSULE
        data = _memory_of(holder) if is_capsule else __memory_of_array(holder)
        if data is None:
            continue
        place = bisect.bisect_right(starts, data) - 1
        if place >= 0 and data < starts[place] + max(ordered[place][1], 1):
            into = found.capsules if is_capsule else found.arrays
            into.setdefault(starts[place], []).append(holder)
    return found


def __memory_of_array(array: Any) -> int | None:
    """Return where an array's memory lies; None if it has memory of its own."""
    kind = sys.modules["numpy"].ndarray
    if kind.base.__get__(array) is None:
        return None
    return int(kind.__array_interface__.__get__(array)["data"][0])


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


def _holders(kinds: tuple[type, ...], objects: list[Any]) -> Iterator[Any]:
    wanted = (*kinds, tuple)
    seen: set[int] = set()
    for start in range(0, len(objects), _AT_ONCE):
        some = objects[start : start + _AT_ONCE]
        # _asyncio of Python 3.12 shows freed objects, and a module's dict is an object by itself
        objects_of_some = compress(some, map(is_not, map(type, some), repeat(MODULES)))
        *found, tuples, dicts = select(gc.get_referents(*objects_of_some), wanted, (dict,))
        # tuples may share tuples many times over
        known: dict[int, Any] = {}
        while inside := _fresh(tuples, dicts, known):
            *inner, tuples, dicts = select(gc.get_referents(*inside), wanted, (dict,))
            found += inner
        for holder in chain.from_iterable(found):
            if id(holder) not in seen:
                seen.add(id(holder))
                yield holder


def _fresh(tuples: list[Any], dicts: list[Any], known: dict[int, Any]) -> list[Any]:
    """Return, once each, those that the heap does not show and that were not there before."""
    inside = [*tuples, *filterfalse(gc.is_tracked, dicts)]
    met = dict(zip(map(id, inside), inside, strict=True))
    fresh = [met[place] for place in met.keys() - known.keys()]
    known.update(met)
    return fresh


def _memory_of(capsule: Any) -> int | None:
    """Return the address of a capsule's memory; None once it was taken, or if it is another."""
    name = _name_of(capsule)
    start = _STARTS.get(name) if name is not None else None
    if start is None:
        return None
    place = _pointer_of(capsule, name) + start
    data = ctypes.c_uint64.from_address(place).value
    return int(data + ctypes.c_uint64.from_address(place + _OFFSET).value)
