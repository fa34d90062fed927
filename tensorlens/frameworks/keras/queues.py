"""Queues that Keras fills ahead of the step in ``fit()``, ``evaluate()`` and ``predict()``.

A PyDataset with several workers has an ``OrderedEnqueuer``: ``max_queue_size`` batches in its
``future_queue``, and one more that its thread makes or waits to put there
(keras/src/trainers/data_adapters/py_dataset_adapter.py, Keras 3.15). With one worker, and for
generators, the only queue is tf.data's ``prefetch(AUTOTUNE)`` on the backend TensorFlow;
``max_queue_size`` of a generator was an option in Keras 2.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tensorlens.frameworks.keras.kinds import backend
from tensorlens.frameworks.queues import batch_bytes, bounded_queue, merge_queues
from tensorlens.heap import instances
from tensorlens.heap.attributes import MissingClass, class_name, content_of, imported
from tensorlens.heap.frames import cell_content
from tensorlens.records.queues import Queue

_ADAPTERS = "keras.src.trainers.data_adapters"
_PY_DATASET = f"{_ADAPTERS}.py_dataset_adapter"
_SOURCE = "keras/src/trainers/data_adapters/py_dataset_adapter.py"
_NO_BATCH = "no batch to measure: pass one, inputs(dataset, batch=batch)"
_AUTOTUNE = "tf.data's prefetch(AUTOTUNE) has no bound of its own: ask while the model is fitted"
_NOT_READ = "what Keras's OrderedEnqueuer holds now is not read"
_ALONE = (
    "with one worker that is a thread there is no queue of Keras's, and max_queue_size is not used"
    f" ({_SOURCE})"
)
_IDLE = "no model is being fitted with it: nothing is held"


def look_at(item: Any, example: Any) -> Queue | None:
    """Return the queue of a PyDataset or a generator; None for anything else."""
    kind = type(item)
    if imported("keras.src.trainers.epoch_iterator", "EpochIterator") is MissingClass:
        return None
    if issubclass(kind, imported(_PY_DATASET, "PyDataset")):
        return _of_dataset(item, example)
    if kind is types.GeneratorType:
        found = _of_epochs(lambda epoch: _reads_generator(epoch, item), example)
        return merge_queues(f"generator {item.__name__}", found) if found else None
    return None


def _of_epochs(wanted: Callable[[Any], bool], example: Any) -> list[Queue]:
    """Return the queues of the calls of ``fit()`` and the like whose epoch is wanted."""
    epochs = instances(imported("keras.src.trainers.epoch_iterator", "EpochIterator"))
    found = (_of_epoch(epoch, example) for epoch in epochs if wanted(epoch))
    return [queue for queue in found if queue is not None]


def _of_enqueuer(enqueuer: Any, example: Any) -> Queue:
    """Return the bound of an enqueuer's queue."""
    content = content_of(enqueuer)
    queue = content_of(content.get("future_queue"))
    batches = [*_next_batch(queue), *([] if example is None else [example])]
    found = _bounded(content.get("py_dataset"), queue.get("maxsize"), batches)
    missing = {**found.missing, "batches": _NOT_READ, "nbytes": _NOT_READ}
    return replace(found, batches=None, nbytes=None, missing=missing, notes=())


def _next_batch(queue: Any) -> list[Any]:
    """Return the next batch in an enqueuer's queue without taking it; none if it is not ready."""
    try:
        future = content_of(queue["queue"][0])
    except LookupError:
        return []
    return [future["_value"]] if future.get("_success") is True and "_value" in future else []


def _of_dataset(dataset: Any, example: Any) -> Queue:
    def is_reader(epoch: Any) -> bool:
        return content_of(content_of(epoch).get("data_adapter")).get("py_dataset") is dataset

    size = _int_of(content_of(dataset), "_max_queue_size", 10)
    idle = _bounded(dataset, size, [] if example is None else [example])
    found = _of_epochs(is_reader, example)
    return merge_queues(idle.name, found) if found else idle


def _bounded(dataset: Any, size: Any, batches: Sequence[Any]) -> Queue:
    """Return the bound of a PyDataset's queue.

    Args:
        dataset: the PyDataset.
        size: its ``max_queue_size``.
        batches: some of its batches; the largest counts.
    """
    settings = content_of(dataset)
    workers = _int_of(settings, "_workers", 1)
    if workers > 1 or (workers and settings.get("_use_multiprocessing")):
        limit, reason = (size + 1 if size > 0 else None), "a max_queue_size of 0 has no bound"
        rule = (
            f"max_queue_size + 1 = {size} + 1: those in future_queue, and one that waits to be put"
            f" there ({_SOURCE})"
        )
    else:
        limit, rule, reason = (None if backend() == "tensorflow" else 0), _ALONE, _AUTOTUNE
    batch_nbytes = max([each for each in map(batch_bytes, batches) if each], default=None)
    workers_text = "1 worker" if workers == 1 else f"{workers} workers"
    name = f"{class_name(dataset)}, {workers_text}, max_queue_size {size}"
    reasons = {"no_bound": reason, "no_size": _NO_BATCH}
    return bounded_queue(name, "keras", limit, batch_nbytes, rule, **reasons, notes=(_IDLE,))


def _of_epoch(epoch: Any, example: Any) -> Queue | None:
    """Return the queue of a call of ``fit()`` or the like; None if the call has ended."""
    content = content_of(epoch)
    adapter = content_of(content.get("data_adapter"))
    found = []
    enqueuer = adapter.get("enqueuer")
    if enqueuer is not None and content_of(enqueuer).get("running"):
        found.append(_of_enqueuer(enqueuer, example))
    dataset = content.get("_distributed_dataset")
    if dataset is not None:
        from tensorlens.frameworks.tensorflow import queues as tensorflow

        iterators = _iterators(content) or tensorflow.iterators_of(dataset)
        behind = [tensorflow.look_at_iterator(each, example) for each in iterators]
        # the dataset that feeds an enqueuer's batches to the step buffers none
        found += [queue for queue in behind if queue.max_batches != 0 or not found]
    elif not found and content.get("_epoch_iterator") is not None and backend() == "torch":
        name = class_name(content.get("data_adapter"))
        rule = "on the backend torch a loader without workers makes each batch when it is asked for"
        found.append(bounded_queue(name, "keras", 0, None, rule, no_size=_NO_BATCH))
    if not found:
        return None
    return merge_queues(found[0].name, found)


def _iterators(epoch: Any) -> list[Any]:
    """Return the iterators that an epoch refers to."""
    kind = imported("tensorflow.python.data.ops.iterator_ops", "OwnedIterator")
    # a local of the generator, if the length of an epoch is unknown
    referents = [epoch.get("_current_iterator"), *gc.get_referents(epoch.get("_epoch_iterator"))]
    found = [each for each in referents if issubclass(type(each), kind)]
    return list({id(each): each for each in found}.values())


def _reads_generator(epoch: Any, generator: Any) -> bool:
    """Tell whether an epoch reads a generator, which a closure of its data adapter holds."""
    restore = content_of(content_of(epoch).get("data_adapter")).get("generator")
    cells = getattr(restore, "__closure__", None) if type(restore) is types.FunctionType else ()
    return any(cell_content(cell) is generator for cell in cells or ())


def _int_of(content: Any, name: str, default: int) -> int:
    value = content.get(name)
    return value if type(value) is int else default
