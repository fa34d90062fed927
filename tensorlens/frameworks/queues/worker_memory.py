"""Memory of processes that make batches: pages copied since the fork, and objects to be copied.

A forked worker shares the pages of its parent until either writes to them. Linux reports the
unshared pages of each mapping, but not its age. Objects in Python containers are copied as their
reference counts are written. Looking at an object writes its count too, and copies its page in this
process: large containers are sampled, and no object is read twice.
"""

from __future__ import annotations

import mmap
import os
import sys
import types
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import eq
from typing import Any, Final

import psutil

from tensorlens.frameworks.host.process_memory import mappings
from tensorlens.heap.attributes import class_name, content_of, imported
from tensorlens.records.names import key_text
from tensorlens.records.queues import ObjectContainer, QueueWorker

FORK = "fork"
_ENDED = "it has ended"
_NOT_LINUX = "copied pages are told by Linux alone"
_COMPARED_PAGES = 16
"""Least number of pages that are compared in a larger mapping."""
_Reading = Callable[[psutil.Process], QueueWorker]
_SEQUENCES: Final = (list, tuple)
_PLAIN: Final = (*_SEQUENCES, dict, set, frozenset)
_FLAT: Final = (str, int, float, bool, bytes, complex, type(None))
_NO_DATA: Final = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
)
_MAX_STRUCTURE: Final = 100
"""Entries up to which a container counts as structure of the dataset, not as data."""
_SAMPLE, _INNER_SAMPLE = 500, 10
"""Entries read of a container of the dataset, and of one inside it."""
_MAX_DEPTH: Final = 6
_MAX_PLACES: Final = 2_000
_MAX_OBJECTS: Final = 200_000
"""Objects that one search reads, in about a quarter of a second."""
_MIN_BYTES: Final = 1 << 20
_MAX_NAMED: Final = 3
_HAS_GC: Final = 1 << 14
"""``Py_TPFLAGS_HAVE_GC``."""
_GC_HEADER: Final = 16

_basic_size: Callable[[type], int] = type.__dict__["__basicsize__"].__get__
_flags: Callable[[type], int] = type.__dict__["__flags__"].__get__
_Weighted = tuple[Any, float]


def workers_of(pids: Iterable[int | None], start_method: str = "") -> tuple[QueueWorker, ...]:
    """Return the memory of worker processes.

    Args:
        pids: processes started by this one; dead ones are not waited for.
        start_method: with ``fork``, copied pages are counted too.
    """
    numbers = [pid for pid in pids if pid]
    if not numbers or start_method != FORK:
        return tuple(_worker(pid, _plain) for pid in numbers)
    if sys.platform != "linux":
        plain = (_worker(pid, _plain) for pid in numbers)
        return tuple(replace(each, missing=each.missing or _NOT_LINUX) for each in plain)
    inherited = _InheritedMappings()
    return tuple(_worker(pid, lambda each: _forked(each, inherited)) for pid in numbers)


def _worker(pid: int, read: _Reading) -> QueueWorker:
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return QueueWorker(pid, "dead", missing=_ENDED)
        try:
            return read(process)
        except psutil.AccessDenied:
            rss = int(process.memory_info().rss)
            return QueueWorker(pid, "running", rss, missing="this system lets nobody look")
    except psutil.NoSuchProcess:
        return QueueWorker(pid, "dead", missing=_ENDED)
    except (psutil.Error, OSError) as error:
        return QueueWorker(pid, "running", missing=f"psutil: {error}")


def _plain(process: psutil.Process) -> QueueWorker:
    memory = process.memory_full_info()
    rss, uss = int(memory.rss), int(memory.uss)
    pss = getattr(memory, "pss", None)
    missing = "" if pss is not None else "this system does not tell the share of shared pages"
    return QueueWorker(process.pid, "running", rss, pss, uss, max(0, rss - uss), missing=missing)


def _forked(process: psutil.Process, inherited: _InheritedMappings) -> QueueWorker:
    found: list[Any] = process.memory_maps(grouped=False)
    rss, pss = sum(each.rss for each in found), sum(each.pss for each in found)
    shared = sum(each.shared_clean + each.shared_dirty for each in found)
    copied = sum(each.private_dirty for each in inherited.among(found, process.pid))
    return QueueWorker(process.pid, "running", rss, pss, rss - shared, shared, copied)


class _InheritedMappings:
    """Compares mappings of forked processes with those of this process.

    The kernel does not tell which mappings are older than the fork. A mapping that still shares an
    anonymous page is older, as the kernel never joins a new mapping to an inherited one
    (``is_mergeable_anon_vma`` of ``mm/vma.c``). A mapping that shares none counts as older if this
    process, the parent, has a mapping with the same addresses, or if most pages at these addresses
    are alike in both (the parent may have freed some): a page copied for a reference count keeps
    all other words.
    """

    def __init__(self) -> None:
        self._ranges = {_range(line.partition(" ")[0]) for line in mappings()}

    def among(self, found: Sequence[Any], pid: int) -> Iterator[Any]:
        """Yield the mappings of a process (of psutil) that are older than the fork."""
        for each in found:
            if "s" not in each.perms and each.private_dirty and self._is_inherited(each, pid):
                yield each

    def _is_inherited(self, mapping: Any, pid: int) -> bool:
        # a file's pages are shared with whoever has mapped it
        is_anonymous = mapping.path.startswith("[")
        if is_anonymous and mapping.shared_clean + mapping.shared_dirty:
            return True
        own = _range(mapping.addr)
        return own in self._ranges or _is_alike(pid, *own)


def _range(text: str) -> tuple[int, int]:
    start, _, end = text.partition("-")
    return int(start, 16), int(end, 16)


def _is_alike(pid: int, start: int, end: int) -> bool:
    """Tell whether most non-empty pages of a range are alike in both processes."""
    count = (end - start) // mmap.PAGESIZE
    alike = different = 0
    for page in range(0, count, max(1, count // _COMPARED_PAGES)):
        place = start + page * mmap.PAGESIZE
        own, other = _words("self", place), _words(pid, place)
        if any(own) and any(other):
            is_alike = 2 * sum(map(eq, own, other)) >= len(own)
            alike, different = alike + is_alike, different + (not is_alike)
    return alike > different


def _words(process: int | str, place: int) -> array[int]:
    """Return the words of a page of a process; empty if it cannot be read."""
    words = array("Q")
    try:
        memory = os.open(f"/proc/{process}/mem", os.O_RDONLY)
        try:
            words.frombytes(os.pread(memory, mmap.PAGESIZE, place))
        finally:
            os.close(memory)
    except (OSError, ValueError, OverflowError):
        return array("Q")
    return words


def object_containers(dataset: Any) -> tuple[ObjectContainer, ...]:
    """Return the largest containers of Python objects, of 1 MiB or more, that a dataset leads to.

    No code of the dataset runs. Arrays and tensors do not count: they have one reference count.
    """
    budget = _Budget()
    found = []
    for place, item in _places(dataset, "dataset"):
        if budget.left <= 0:
            break
        container = _measured(place, item, budget)
        if container is not None and container.nbytes >= _MIN_BYTES:
            found.append(container)
    return tuple(sorted(found, key=lambda each: -each.nbytes)[:_MAX_NAMED])


class _Budget:
    def __init__(self) -> None:
        self.left = _MAX_OBJECTS


def _places(dataset: Any, name: str) -> list[tuple[str, Any]]:
    """Return the large containers, by name, that attributes and small containers lead to."""
    found, seen, waiting = [], {id(dataset)}, deque([(name, dataset)])
    count = 0
    while waiting and count < _MAX_PLACES:
        place, item = waiting.popleft()
        count += 1
        length = _length(item)
        if length is not None and length > _MAX_STRUCTURE:
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
    """Return the built-in container type that an object's class derives from; None of others."""
    return next((plain for plain in _PLAIN if issubclass(type(item), plain)), None)


def _length(item: Any) -> int | None:
    """Return the number of objects in a container; None if it is no container."""
    kind = _kind(item)
    if kind is not None:
        return int(kind.__len__(item))
    return int(item.size) if _is_object_array(item) else None


def _is_object_array(item: Any) -> bool:
    array: Any = imported("numpy", "ndarray")
    return type(item) is array and bool(item.dtype.hasobject)


def _sampled(item: Any, limit: int) -> tuple[list[Any], float]:
    """Return a sample of the objects in an object, and the number that each stands for."""
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
    """Return the bytes of objects in a container; None while another thread changes it."""
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
    """Return the bytes of objects with their content, and whether all of it was read.

    An object found twice is shared: it does not stand for others.
    """
    seen: dict[int, Any] = {}
    total, is_exact = 0.0, True
    for _ in range(_MAX_DEPTH):
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
    """Return how many of an object's bytes are copied with its count: one page at most."""
    kind = type(item)
    if kind in _FLAT or kind is tuple:
        nbytes = sys.getsizeof(item)
    else:
        # entries of lists and dicts are elsewhere, and reading writes nothing there
        nbytes = _basic_size(kind) + (_GC_HEADER if _flags(kind) & _HAS_GC else 0)
    return min(nbytes, mmap.PAGESIZE)
