"""Reads the queues of ``tf.data`` from its own model of an iterator.

``IteratorGetModelProto`` returns the elements and bytes in the buffer of each node
(tensorflow/core/framework/model.proto); it waits for no element and takes none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.frameworks.queues import batch_bytes, bounded_queue, merge_queues, total
from tensorlens.heap import instances
from tensorlens.heap.attributes import class_name, content_of, imported, is_subtype
from tensorlens.records.queues import Queue, QueuePart

AUTOTUNE = -1
"""``tf.data.AUTOTUNE``."""
_SIZE_ATTRIBUTES = ("_buffer_size", "_num_parallel_calls")
_BUFFERING = ("Prefetch", "Shuffle", "Cache", "Parallel", "Snapshot", "Service", "MapAndBatch")
"""Parts of the names of datasets whose iterators buffer elements
(tensorflow/python/data/ops, TensorFlow 2.21)."""


@dataclass(frozen=True, slots=True)
class Transformation:
    """A dataset in the chain of an input pipeline."""

    kind: str
    """``Prefetch``, ``Shuffle``, ``ParallelMap``."""
    size: int | None
    """Elements in its buffer or number of parallel calls; :data:`AUTOTUNE`; None without these."""
    is_known: bool
    """Whether its class is TensorFlow's own."""

    @property
    def buffers(self) -> bool:
        """Whether its iterators buffer elements, or may."""
        return not self.is_known or any(part in self.kind for part in _BUFFERING)


def transformations(dataset: Any) -> list[Transformation]:
    """Return a dataset and those it is made from, the last transformation first."""
    found, waiting, seen = [], [dataset], set()
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        known = type(each).__module__.startswith("tensorflow.")
        kind = class_name(each).strip("_").removesuffix("Dataset").removesuffix("DatasetV2")
        found.append(Transformation(kind, _size(each), known))
        if known:
            with contextlib.suppress(Exception):
                waiting += each._inputs()
    return found


def _size(dataset: Any) -> int | None:
    content = content_of(dataset)
    for name in _SIZE_ATTRIBUTES:
        value = content.get(name)
        if value is not None:
            with contextlib.suppress(Exception):
                return int(value.numpy())
    return None


_MAX_BATCH_RESULTS = 16
_ASK_AGAIN = "tf.data may add and fuse transformations: ask again while it is iterated over"
_NO_MODEL = "autotune is off for this dataset, and with it tf.data's count of what buffers hold"
_IDLE = "no iterator over it is alive: nothing is held until a loop begins"
_NO_SIZE = "no batch has been made so far, and its shape is not fixed"


def look_at(item: Any, example: Any) -> Queue | None:
    """Return the queue of a dataset or of an iterator; None for anything else."""
    if is_subtype(type(item), imported("tensorflow.python.data.ops.dataset_ops", "DatasetV2")):
        return look_at_dataset(item, example)
    if is_subtype(type(item), imported("tensorflow.python.data.ops.iterator_ops", "OwnedIterator")):
        return look_at_iterator(item, example)
    return None


def iterators_of(dataset: Any) -> list[Any]:
    """Return the living iterators over a dataset."""
    kind = imported("tensorflow.python.data.ops.iterator_ops", "OwnedIterator")
    return [item for item in instances(kind) if content_of(item).get("_dataset") is dataset]


def look_at_dataset(dataset: Any, example: Any) -> Queue:
    """Return the queue of all iterators over a dataset."""
    found = [look_at_iterator(item, example) for item in iterators_of(dataset)]
    chain = transformations(dataset)
    if found:
        name = f"{_title(chain)}, {len(found)} iterators"
        return found[0] if len(found) == 1 else merge_queues(name, found)
    spec = dataset.element_spec if chain[0].is_known else None
    return _queue_without_model(chain, _static_bytes(spec, example), is_running=False)


def look_at_iterator(iterator: Any, example: Any = None) -> Queue:
    """Return the queue of an iterator."""
    content = content_of(iterator)
    chain = transformations(content.get("_dataset"))
    model = _model(content.get("_iterator_resource"))
    known = _static_bytes(content.get("_element_spec"), example)
    if model is None:
        return _queue_without_model(chain, known, is_running=True)
    nodes = _nodes(model)
    if not nodes:
        empty = _queue_without_model([], known, is_running=True)
        return replace(empty, name=_title(chain), notes=("it has come to its end",))
    parts = _parts(nodes, chain, int(model.optimization_params.ram_budget))
    ahead = [part for part in parts if part.ahead]
    sizes = [known, *(_mean(part) for part in parts if part.unit == "batch")]
    batch_nbytes = max(filter(None, sizes), default=None)
    parts = [_with_max_nbytes(part, batch_nbytes) for part in parts]
    max_batches = total(part.max_elements for part in ahead)
    max_nbytes = total(part.max_nbytes for part in parts)
    missing = {}
    if max_batches is None:
        missing["max_batches"] = next((part.missing for part in ahead if part.missing), "")
    if max_nbytes is None:
        reasons = [part.missing for part in parts if part.max_nbytes is None and part.missing]
        missing["max_nbytes"] = "; ".join(dict.fromkeys(reasons)) or _NO_SIZE
    if batch_nbytes is None:
        missing["batch_nbytes"] = _NO_SIZE
    return Queue(
        name=_title(chain),
        framework="tensorflow",
        batches=sum(part.elements or 0 for part in ahead),
        nbytes=sum(part.nbytes or 0 for part in parts),
        max_batches=max_batches,
        max_nbytes=max_nbytes,
        batch_nbytes=batch_nbytes,
        parts=tuple(parts),
        rule="; ".join(dict.fromkeys(part.rule for part in ahead))
        or "nothing in it holds whole batches",
        missing=missing,
    )


def _model(resource: Any) -> Any:
    """Return the model of an iterator; None if there is none or it cannot be read."""
    import tensorflow as tf

    try:
        from tensorflow.core.framework import model_pb2

        with tf.init_scope():
            text = tf.raw_ops.IteratorGetModelProto(iterator=resource).numpy()
        return model_pb2.ModelProto.FromString(text)
    except (tf.errors.OpError, AttributeError, ImportError, TypeError, ValueError):
        return None


def _nodes(model: Any) -> list[tuple[Any, str]]:
    """Return the nodes from the output on, each with the unit of its elements.

    Upstream of a batch the unit is a sample.
    """
    found, waiting, seen = [], [(int(model.output), "batch")], set()
    while waiting:
        at, unit = waiting.pop(0)
        if at not in seen and at in model.nodes:
            seen.add(at)
            node = model.nodes[at]
            found.append((node, unit))
            waiting += [(int(each), _upstream(node, unit)) for each in node.inputs]
    return found


def _upstream(node: Any, unit: str) -> str:
    """Return the unit of a node's inputs; ``unit`` is that of its elements."""
    if unit != "batch":
        return unit
    if node.ratio > 1:
        return "sample"
    # an element may be made of several inputs, or be a part of one
    is_mixed = node.name in ("Unbatch", "RebatchV2", "Rebatch", "Window") or node.name.startswith(
        ("ParallelInterleave", "Interleave")
    )
    return "element" if is_mixed else unit


_PREFETCH = "buffer_size of prefetch() (tensorflow/core/kernels/data/prefetch_dataset_op.cc)"


def _parts(
    nodes: Sequence[tuple[Any, str]], chain: Sequence[Transformation], budget: int
) -> list[QueuePart]:
    shuffles = [each.size for each in chain if each.kind == "Shuffle"]
    count = sum("Shuffle" in node.name for node, _ in nodes)
    shuffle_sizes = iter(shuffles if len(shuffles) == count else [None] * count)
    found = []
    for node, unit in nodes:
        limit, rule, reason = _limit(node, budget)
        if "Shuffle" in node.name:
            limit, rule = next(shuffle_sizes), "buffer_size of shuffle()"
            reason = "the size of shuffle()'s buffer is unknown"
        if rule or node.buffered_elements:
            part = QueuePart(
                name=node.name,
                where="TensorFlow",
                elements=int(node.buffered_elements),
                unit=unit,
                nbytes=int(node.buffered_bytes),
                max_elements=limit,
                max_nbytes=None,
                rule=rule or "what it keeps",
                ahead=unit == "batch" and "Cache" not in node.name and "Shuffle" not in node.name,
                missing="" if limit is not None else reason or "tf.data does not tell its bound",
            )
            found.append(part)
    return found


def _limit(node: Any, budget: int) -> tuple[int | None, str, str]:
    """Return the most elements in a node's buffer, the rule, and the reason if it is unknown."""
    parameters = {each.name: each for each in node.parameters}
    size = parameters.get("buffer_size")
    if size is not None:
        if size.tunable:
            room = int(size.state_value)
            reason = (
                f"AUTOTUNE: room for {room} now, which grows while the loop waits"
                + (f", up to the RAM budget of {budget:,} B" if budget else "")
            )  # fmt: skip
            return None, "buffer_size of prefetch(): AUTOTUNE", reason
        return int(size.max), _PREFETCH, ""
    limit = parameters.get("max_buffered_elements")
    if limit is not None:
        rule = "(2 x block_length + 1) x 3 x cycle_length (parallel_interleave_dataset_op.cc)"
        return int(limit.max), rule, ""
    if node.name == "MapAndBatch":
        return _MAX_BATCH_RESULTS, "kMaxBatchResults (map_and_batch_dataset_op.cc)", ""
    calls = parameters.get("parallelism")
    if calls is not None:
        value = max(calls.max, calls.state_value) if calls.tunable else calls.state_value
        return int(max(value, 1)), "parallel calls, the results of each", ""
    if "Cache" in node.name and node.buffered_elements:
        return None, "cache() keeps all elements for good", "cache() keeps all elements"
    return None, "", ""


def _with_max_nbytes(part: QueuePart, batch_nbytes: int | None) -> QueuePart:
    if part.max_elements is None:
        return part
    nbytes = batch_nbytes if part.ahead else _mean(part)
    if part.max_elements and nbytes is None:
        return replace(part, missing=part.missing or _NO_SIZE)
    return replace(part, max_nbytes=part.max_elements * (nbytes or 0))


def _mean(part: QueuePart) -> int | None:
    """Return the mean bytes of an element; None if none is held."""
    return -(-part.nbytes // part.elements) if part.nbytes and part.elements else None


def _static_bytes(spec: Any, example: Any) -> int | None:
    """Return the bytes of an example, or of an element if all its shapes are fixed."""
    if example is not None:
        return batch_bytes(example)
    import tensorflow as tf

    from tensorlens.frameworks.tensorflow.sizes import nbytes

    try:
        leaves = tf.nest.flatten(spec)
        return sum(nbytes(each.shape.as_list(), each.dtype.name) for each in leaves) or None
    except (AttributeError, ValueError, TypeError):  # no tensor, or a length that is not fixed
        return None


def _queue_without_model(
    chain: Sequence[Transformation], batch_nbytes: int | None, *, is_running: bool
) -> Queue:
    """Return the queue as far as it is known without tf.data's model of a running iterator."""
    buffering = [each for each in chain if each.buffers]
    last = next((each for each in chain if each.kind != "Options"), None)
    limit = 0 if is_running and not buffering else None
    is_prefetch = last is not None and last.kind == "Prefetch" and last.size != AUTOTUNE
    if is_prefetch and [last] == buffering:
        limit = buffering[0].size
    found = bounded_queue(
        _title(chain),
        "tensorflow",
        limit,
        batch_nbytes,
        "nothing in it keeps elements" if limit == 0 else _PREFETCH if limit else "",
        no_bound=_NO_MODEL if is_running else _ASK_AGAIN,
        no_size=_NO_SIZE,
        notes=() if is_running else (_IDLE,),
    )
    if not is_running or limit == 0:
        return found
    missing = {"batches": _NO_MODEL, "nbytes": _NO_MODEL, **found.missing}
    return replace(found, batches=None, nbytes=None, missing=missing)


def _title(chain: Sequence[Transformation]) -> str:
    names = []
    for each in chain:
        if each.buffers:
            size = "AUTOTUNE" if each.size == AUTOTUNE else each.size
            names.append(each.kind if size is None else f"{each.kind} {size}")
    return f"tf.data ({', '.join(names)})" if names else "tf.data"
