"""Finds the input queue that an object is or wraps, and the queues of the host's ledger."""

from __future__ import annotations

import gc
import multiprocessing.process
import queue
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorlens.frameworks.queues import batch_bytes, bounded_queue, total
from tensorlens.heap import instances
from tensorlens.heap.attributes import MissingClass, class_name, content_of, imported
from tensorlens.records.ledger import Ledger, Part
from tensorlens.records.queues import Queue, QueuePart
from tensorlens.units import format_bytes

_WRAPPING = (
    *("dataloader", "base_dataloader", "loader", "data_loader", "_dataloader", "_loader"),
    *("iterable", "base_iterator", "iterator", "_iterator", "_iter", "it", "dl"),
)
"""Attributes of loaders that wrap others."""
_STANDARD = (enumerate, zip, map, filter, reversed)
_MAX_DEPTH = 6
KEY = "queued"
LABEL = "queued input"
_WORKERS = (
    "batches that a DataLoader's workers have made and the loop has not received: shared memory"
)
_BUFFERS = (
    "what the buffers of tf.data's iterators hold, as tf.data counts it: elements that share their"
    " memory count each"
)
_FILLED = "more than there was beside tensors when the rest was read"


def find_queue(item: Any, example: Any) -> Queue | None:
    """Return the queue that an object is or wraps; None if there is none."""
    waiting, seen = [(item, 0, False)], set()
    while waiting:
        each, depth, looks_ahead = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        found = _known(each, example) or (None if depth else _plain(each))
        if found is not None:
            return _wrapped(found, item, looks_ahead) if each is not item else found
        looks_ahead = looks_ahead or _is_of_accelerate(each)
        if depth < _MAX_DEPTH:
            waiting += [(inner, depth + 1, looks_ahead) for inner in _inside(each)]
    return _generator(item) if type(item) is types.GeneratorType else None


def _known(item: Any, example: Any) -> Queue | None:
    if imported("torch.utils.data.dataloader", "DataLoader") is not MissingClass:
        from tensorlens.frameworks.torch import data_loader

        if data_loader.is_loader(item):
            return data_loader.look_at_loader(item, example)
        if data_loader.is_iterator(item):
            return data_loader.look_at_iterator(item, example)
    from tensorlens.frameworks.keras import queues as keras

    found = keras.look_at(item, example)
    if found is None and imported("tensorflow.python.data.ops.dataset_ops", "DatasetV2") is not (
        MissingClass
    ):
        from tensorlens.frameworks.tensorflow import queues as tensorflow

        found = tensorflow.look_at(item, example)
    return found


def _plain(item: Any) -> Queue | None:
    """Return the queue of an array or of Python's own queues; None of other objects."""
    if issubclass(type(item), queue.Queue):
        return _python_queue(item)
    array: Any = imported("numpy", "ndarray")
    if array is MissingClass or not issubclass(type(item), array):
        return None
    nbytes = batch_bytes(item) or 0
    rule = "an array is in memory as a whole; its batches are made when they are asked for"
    where = _place_of(item, array)
    part = QueuePart("array", where, 1, "element", nbytes, 1, nbytes, rule, ahead=False)
    name = f"{class_name(item)} of {array.dtype.__get__(item)} {array.shape.__get__(item)}"
    no_size = "an array does not say how large a batch is"
    found = bounded_queue(name, "numpy", 0, None, rule, no_size=no_size)
    return replace(found, nbytes=nbytes, max_nbytes=nbytes, parts=(part,))


def _place_of(item: Any, array: Any) -> str:
    """Return where an array's memory is: this process, a file, or shared memory."""
    base, memmap = item, imported("numpy", "memmap")
    while base is not None and issubclass(type(base), array):
        if issubclass(type(base), memmap):
            return "a mapped file: resident as far as it was read"
        base = array.base.__get__(base)
    if type(base) is memoryview:
        base = base.obj
    return "shared memory" if class_name(base) in ("SharedMemory", "mmap") else "this process"


def _python_queue(item: Any) -> Queue:
    content = content_of(item)
    try:
        waiting: list[Any] | None = list(content.get("queue", ()))
    except (RuntimeError, TypeError):
        waiting = None
    limit = content.get("maxsize")
    bound = limit if type(limit) is int and limit > 0 else None
    count = None if waiting is None else len(waiting)
    nbytes = batch_bytes(*waiting) if waiting else count
    sizes = [size for size in map(batch_bytes, waiting or ()) if size]
    rule = "maxsize" if bound else "no maxsize"
    found = bounded_queue(
        f"{class_name(item)}, maxsize {limit}",
        "python",
        bound,
        max(sizes, default=None),
        f"{rule} (queue.py of CPython); whoever waits in put() holds one more",
        no_bound="a queue without maxsize has no bound",
        no_size="no item with arrays or tensors waits in it",
    )
    most = found.max_nbytes
    part = QueuePart("queue", "this process", count, "batch", nbytes, bound, most, rule)
    if count is None:
        unknown = "what waits in it cannot be listed"
        found.missing.update(batches=unknown, nbytes=unknown)
    elif nbytes is None:
        found.missing["nbytes"] = "the items hold no arrays or tensors"
    return replace(found, batches=count, nbytes=nbytes, parts=(part,))


def _generator(item: Any) -> Queue:
    """Return the queue of a generator, which makes nothing ahead."""
    rule = "a generator runs when it is asked for its next; nobody asks ahead of the loop"
    return bounded_queue(
        f"generator {item.__name__}",
        "python",
        0,
        None,
        rule,
        no_size="a generator does not say how large a batch is",
        notes=("no model is being fitted with it",),
    )


def _inside(item: Any) -> Iterator[Any]:
    """Yield objects that an object may wrap; none of its code runs."""
    kind = type(item)
    if kind in _STANDARD or kind.__module__ in ("itertools", "builtins"):
        if kind not in (str, bytes, dict, list, tuple, int, float):
            for each in gc.get_referents(item):
                # zip holds its iterators in a tuple
                yield from each if type(each) is tuple else (each,)
        return
    if kind is types.GeneratorType:
        # its locals; gi_frame.f_locals would keep them alive
        yield from gc.get_referents(item)
        return
    content = content_of(item)
    for name in _WRAPPING:
        if content.get(name) is not None:
            yield content[name]


def _is_of_accelerate(item: Any) -> bool:
    """Tell whether an object is a loader of accelerate, or the generator of one."""
    if type(item) is types.GeneratorType:
        return Path(item.gi_code.co_filename).parts[-2:] == ("accelerate", "data_loader.py")
    return type(item).__module__ == "accelerate.data_loader"


def _wrapped(queue: Queue, item: Any, looks_ahead: bool) -> Queue:
    found = replace(queue, name=f"{queue.name}, inside {class_name(item)}")
    if not looks_ahead:
        return found
    note = "accelerate holds one batch more, to know which is the last (accelerate/data_loader.py)"
    more = None if found.max_batches is None else found.max_batches + 1
    one = found.batch_nbytes
    most = None if found.max_nbytes is None or one is None else found.max_nbytes + one
    return replace(found, max_batches=more, max_nbytes=most, notes=(*found.notes, note))


def with_queued_input(ledgers: Mapping[str, Ledger]) -> Mapping[str, Ledger]:
    """Return the ledgers, with a term for the queues of live loaders in the host's.

    Shared memory of workers is a part of ``other``, TensorFlow's buffers of ``allocated``. NumPy
    arrays that Keras queues are in the term of the heap. Without loaders there is no term.
    """
    host = ledgers.get("cpu")
    if host is None:
        return ledgers
    found = host
    for add in (_workers, _buffers):
        try:
            found = add(found)
        except Exception:
            # without this queue the ledger still balances
            continue
    return ledgers if found is host else {**ledgers, "cpu": found}


def _workers(ledger: Ledger) -> Ledger:
    kind = imported("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter")
    if kind is MissingClass or not content_of(multiprocessing.process).get("_children"):
        return ledger
    from tensorlens.frameworks.torch.data_loader import parts_of

    parts = [part for item in instances(kind) for part in parts_of(item) if part.name == "results"]
    if not parts:
        return ledger
    reason = next((part.missing for part in parts if part.nbytes is None), "")
    nbytes = total(part.nbytes for part in parts)
    if nbytes is not None and ledger.other is not None and nbytes > ledger.other:
        reason = f"the workers have {format_bytes(nbytes)} now: {_FILLED}"
        nbytes = None
    return _with(ledger, "other", nbytes, _WORKERS, reason)


def _buffers(ledger: Ledger) -> Ledger:
    kind = imported("tensorflow.python.data.ops.iterator_ops", "OwnedIterator")
    if kind is MissingClass or ledger.allocated is None:
        return ledger
    iterators = instances(kind)
    if not iterators:
        return ledger
    from tensorlens.frameworks.tensorflow.queues import look_at_iterator

    queues: list[Queue] = [look_at_iterator(item) for item in iterators]
    if not any(queue.nbytes != 0 for queue in queues):
        return ledger
    nbytes = total(queue.nbytes for queue in queues)
    reason = next((queue.missing.get("nbytes", "") for queue in queues if queue.nbytes is None), "")
    if nbytes is not None and nbytes > ledger.allocated:
        reason = (
            f"tf.data counts {format_bytes(nbytes)}, of which TensorFlow did not allocate all:"
            " elements share memory with each other or with NumPy"
        )
        nbytes = None
    return _with(ledger, "allocated", nbytes, _BUFFERS, reason)


def _with(ledger: Ledger, figure: str, nbytes: int | None, text: str, reason: str) -> Ledger:
    if getattr(ledger, figure) is None:
        return ledger
    term = Part(figure, KEY, LABEL, nbytes, text)
    missing = ledger.missing if nbytes is not None else {**ledger.missing, KEY: reason}
    return replace(ledger, parts=(*ledger.parts, term), missing=missing)
