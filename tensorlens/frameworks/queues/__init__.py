"""Input queues of all frameworks: the bytes of batches, bounds, and several queues as one."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tensorlens.heap.attributes import MissingClass, content_of, imported
from tensorlens.lazy import attach
from tensorlens.records.queues import Queue

_MAX_ITEMS = 100_000
_MAX_DEPTH = 12
_NUMBERS = {*map(id, (int, float, bool, complex, type(None)))}
"""``id()`` of types that are skipped without being counted."""
_NO_BATCH = (type, types.ModuleType, types.FunctionType, types.MethodType)


def batch_bytes(*batches: Any) -> int | None:
    """Return the bytes of the arrays and tensors in batches; None if none are found.

    ``str`` and ``bytes`` count by their length, numbers do not count. No code of the batches runs;
    objects other than lists, tuples and dicts are searched by their attributes.
    """
    seen = _memories(batches)
    return sum(seen.values()) if seen else None


def holds_tensors(batch: Any) -> bool:
    """Tell whether a batch contains tensors of torch."""
    return any(isinstance(key, tuple) and key[0] == "torch" for key in _memories((batch,)))


def _memories(batches: Sequence[Any]) -> dict[object, int]:
    """Return the bytes of each distinct piece of memory in batches."""
    seen: dict[object, int] = {}
    waiting = [(batch, 0) for batch in batches]
    known: set[int] = set()
    count = 0
    while waiting and count < _MAX_ITEMS:
        item, depth = waiting.pop()
        count += 1
        if id(item) in known:
            continue
        known.add(id(item))
        memory = _memory(item)
        if memory is not None:
            key, nbytes = memory
            seen[key] = max(nbytes, seen.get(key, 0))
        elif depth < _MAX_DEPTH:
            inside = (each for each in _inside(item) if id(type(each)) not in _NUMBERS)
            waiting.extend((inner, depth + 1) for inner in inside)
    return seen


def _inside(item: Any) -> Iterator[Any]:
    kind = type(item)
    for plain in (list, tuple, set, frozenset):
        if issubclass(kind, plain):
            yield from list(plain.__iter__(item))
            return
    if issubclass(kind, dict):
        yield from list(dict.values(item))
        return
    if not issubclass(kind, _NO_BATCH):
        yield from content_of(item).values()


def _memory(item: Any) -> tuple[object, int] | None:
    """Return a key of an object's memory and its bytes; None if the object has no memory itself."""
    kind = type(item)
    if kind is bytes or kind is bytearray or kind is str:
        return id(item), len(item)
    with contextlib.suppress(Exception):
        if issubclass(kind, imported("torch", "Tensor")):
            return _of_torch(item)
        array = imported("numpy", "ndarray")
        if array is not MissingClass and issubclass(kind, array):
            return _of_numpy(item, array)
        if issubclass(kind, imported("tensorflow.python.framework.ops", "EagerTensor")):
            nbytes = 1
            for extent in item.shape:
                nbytes *= int(extent)
            return id(item), nbytes * int(item.dtype.size)
    return None


def _of_torch(tensor: Any) -> tuple[object, int]:
    torch: Any = sys.modules["torch"]
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            return ("torch", storage.data_ptr()), int(storage.nbytes())
        if tensor.layout is torch.sparse_coo:
            return id(tensor), int(tensor._indices().nbytes + tensor._values().nbytes)
        return id(tensor), int(tensor.element_size() * tensor._nnz())


def _of_numpy(array: Any, kind: Any) -> tuple[object, int]:
    # a view keeps its whole base alive
    while True:
        base = kind.base.__get__(array)
        if base is None or not issubclass(type(base), kind):
            return ("numpy", id(array)), int(kind.nbytes.__get__(array))
        array = base


def bounded_queue(
    name: str,
    framework: str,
    limit: int | None,
    one: int | None,
    rule: str,
    *,
    no_bound: str = "",
    no_size: str,
    **others: Any,
) -> Queue:
    """Return an empty queue of at most ``limit`` batches of ``one`` bytes.

    Args:
        name: name of the queue.
        framework: the framework that it belongs to.
        limit: None if there is no bound.
        one: None if unknown.
        rule: the reason for ``limit``.
        no_bound: the reason if there is no bound.
        no_size: the reason if the bytes of a batch are unknown.
        others: further fields.
    """
    missing = {}
    if limit is None:
        missing["max_batches"] = missing["max_nbytes"] = no_bound
    elif limit and one is None:
        missing["max_nbytes"] = no_size
    if one is None:
        missing["batch_nbytes"] = no_size
    most = 0 if limit == 0 else None if limit is None or one is None else limit * one
    return Queue(name, framework, 0, 0, limit, most, one, (), rule, missing=missing, **others)


def merge_queues(name: str, queues: Sequence[Queue]) -> Queue:
    """Combine several queues; a figure that one of them lacks is unknown."""
    first = queues[0]
    missing: dict[str, str] = {}
    for queue in queues:
        missing.update(queue.missing)
    notes = dict.fromkeys(note for queue in queues for note in queue.notes)
    sizes = [queue.batch_nbytes for queue in queues if queue.batch_nbytes is not None]
    if sizes:
        missing.pop("batch_nbytes", None)
    return replace(
        first,
        name=name,
        batches=total(queue.batches for queue in queues),
        nbytes=total(queue.nbytes for queue in queues),
        max_batches=total(queue.max_batches for queue in queues),
        max_nbytes=total(queue.max_nbytes for queue in queues),
        batch_nbytes=max(sizes, default=None),
        parts=tuple(part for queue in queues for part in queue.parts),
        rule="; ".join(dict.fromkeys(queue.rule for queue in queues if queue.rule)),
        workers=tuple(worker for queue in queues for worker in queue.workers),
        objects=tuple(dict.fromkeys(each for queue in queues for each in queue.objects)),
        waiting=total(queue.waiting for queue in queues),
        in_work=total(queue.in_work for queue in queues),
        missing=missing,
        notes=tuple(notes),
    )


def total(figures: Iterable[int | None]) -> int | None:
    """Return the sum of figures; None if one is unknown."""
    known = list(figures)
    return None if None in known else sum(each for each in known if each is not None)


attach(
    __name__,
    {
        "worker_memory": ("object_containers", "workers_of"),
    },
)
