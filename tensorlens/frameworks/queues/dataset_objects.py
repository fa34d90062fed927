"""Containers of Python objects that a dataset leads to, whose reference counts copy pages.

To look at an object is to write to its reference count, and so copies its page in this process.
Large containers are therefore looked at by a sample, and nothing is looked at twice.
"""

from __future__ import annotations

import mmap
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from tensorlens.heap.attributes import class_name, content_of, imported
from tensorlens.records.names import key_text
from tensorlens.records.queues import ObjectContainer

_SEQUENCES: Final = (list, tuple)
_PLAIN: Final = (*_SEQUENCES, dict, set, frozenset)
_FLAT: Final = (str, int, float, bool, bytes, complex, type(None))
_NO_DATA: Final = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
)
_SMALL: Final = 100
"""Entries of a container that is a part of the dataset's structure, not data."""
_SAMPLE, _INNER_SAMPLE = 500, 10
"""Entries that are looked at, of a container of the dataset and of one inside it."""
_DEEPEST: Final = 6
_MOST_PLACES: Final = 2_000
_MOST_OBJECTS: Final = 200_000
"""What one search looks at: about a quarter of a second."""
_LEAST: Final = 1 << 20
_MOST_NAMED: Final = 3
_HAS_GC: Final = 1 << 14
"""``Py_TPFLAGS_HAVE_GC``."""
_GC_HEADER: Final = 16

_basic_size: Callable[[type], int] = type.__dict__["__basicsize__"].__get__
_flags: Callable[[type], int] = type.__dict__["__flags__"].__get__
_Weighted = tuple[Any, float]


def object_containers(dataset: Any) -> tuple[ObjectContainer, ...]:
    """Return the largest containers of Python objects that a dataset leads to, of 1 MiB or more.

    No code of the dataset is run. Arrays and tensors are no such containers: all their numbers
    have one reference count.
    """
    budget = _Budget()
    found = []
    for place, item in _places(dataset, "dataset"):
        if budget.left <= 0:
            break
        container = _measured(place, item, budget)
        if container is not None and container.nbytes >= _LEAST:
            found.append(container)
    return tuple(sorted(found, key=lambda each: -each.nbytes)[:_MOST_NAMED])


class _Budget:
    def __init__(self) -> None:
        self.left = _MOST_OBJECTS


def _places(dataset: Any, name: str) -> list[tuple[str, Any]]:
    """Return the large containers that attributes and small containers lead to, with names."""
    found, seen, waiting = [], {id(dataset)}, deque([(name, dataset)])
    count = 0
    while waiting and count < _MOST_PLACES:
        place, item = waiting.popleft()
        count += 1
        length = _length(item)
        if length is not None and length > _SMALL:
            found.append((place, item))
            continue
        for step, inner in _steps(item):
            if id(inner) not in seen and not issubclass(type(inner), (*_NO_DATA, *_FLAT)):
                seen.add(id(inner))
                waiting.append((place + step, inner))
    return found


def _steps(item: Any) -> Iterable[tuple[str, Any]]:
    kind = _kind(item)
    if kind is dict:
        return [(f"[{key_text(key)}]", value) for key, value in dict.copy(item).items()]
    if kind in _SEQUENCES:
        return [(f"[{place}]", each) for place, each in enumerate(kind.__iter__(item))]
    return [(f".{key}", value) for key, value in content_of(item).items()]


def _kind(item: Any) -> Any:
    """Return the container of Python's own that an object is, whatever its class makes of it."""
    return next((plain for plain in _PLAIN if issubclass(type(item), plain)), None)


def _length(item: Any) -> int | None:
    """Return how many objects a container holds; None for what is none."""
    kind = _kind(item)
    if kind is not None:
        return int(kind.__len__(item))
    return int(item.size) if _is_object_array(item) else None


def _is_object_array(item: Any) -> bool:
    array: Any = imported("numpy", "ndarray")
    return type(item) is array and bool(item.dtype.hasobject)


def _sampled(item: Any, limit: int) -> tuple[list[Any], float]:
    """Return some of the objects that an object holds, and how many each stands for."""
    if issubclass(type(item), (*_FLAT, *_NO_DATA)):
        return [], 1.0
    kind, length = _kind(item), _length(item)
    if length is None:
        return list(content_of(item).values()), 1.0
    step = max(1, -(-length // limit))
    if kind is dict:
        pairs = list(islice(dict.items(item), limit))
        return [each for pair in pairs for each in pair], length / max(1, len(pairs))
    if kind in _SEQUENCES:
        # a slice, as an iterator writes to each that it passes
        some = list(kind.__getitem__(item, slice(None, None, step)))
    elif kind is not None:
        some = list(islice(kind.__iter__(item), limit))
    else:
        # not reshape(), which may copy all of it
        some = item.flat[::step].tolist()
    return some, length / max(1, len(some))


def _measured(name: str, item: Any, budget: _Budget) -> ObjectContainer | None:
    """Return how many bytes of objects a container holds; None while another thread changes it."""
    try:
        some, scale = _sampled(item, _SAMPLE)
        kinds = dict.fromkeys(map(class_name, _values(item, some)))
        nbytes, is_exact = _bytes_of([(each, scale) for each in some], budget)
    except (RuntimeError, ValueError, TypeError):
        return None
    elements = " or ".join(kinds) if len(kinds) <= 2 else "object"
    kind = "object array" if _is_object_array(item) else class_name(item)
    return ObjectContainer(
        name, kind, _length(item) or 0, elements, nbytes, is_exact and scale == 1.0
    )


def _values(item: Any, some: Sequence[Any]) -> Sequence[Any]:
    return some[1::2] if issubclass(type(item), dict) else some


def _bytes_of(level: list[_Weighted], budget: _Budget) -> tuple[int, bool]:
    """Return the bytes of objects and of what they hold, and whether all was looked at.

    An object that is met twice is one that many share: it does not stand for others.
    """
    seen: dict[int, Any] = {}
    total, is_exact = 0.0, True
    for _ in range(_DEEPEST):
        weights: dict[int, float] = {}
        fresh: dict[int, Any] = {}
        for item, weight in level:
            number = id(item)
            if number not in seen and not issubclass(type(item), _NO_DATA):
                weights[number] = 1.0 if number in weights else weight
                fresh[number] = item
        seen.update(fresh)
        budget.left -= len(fresh)
        total += sum(_size(item) * weights[number] for number, item in fresh.items())
        if not fresh or budget.left <= 0:
            return round(total), is_exact and not fresh
        level = []
        for number, item in fresh.items():
            some, scale = _sampled(item, _INNER_SAMPLE)
            is_exact = is_exact and scale <= 1.0
            level += [(each, weights[number] * scale) for each in some]
    return round(total), is_exact and not level


def _size(item: Any) -> int:
    """Return the bytes of an object's pages that its reference count copies: one page at most."""
    kind = type(item)
    if kind in _FLAT or kind is tuple:
        nbytes = sys.getsizeof(item)
    else:
        # entries of lists and dicts are elsewhere, and reading writes nothing there
        nbytes = _basic_size(kind) + (_GC_HEADER if _flags(kind) & _HAS_GC else 0)
    return min(nbytes, mmap.PAGESIZE)
