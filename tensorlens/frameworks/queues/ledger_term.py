"""The input queue as a term of the host's ledger: what loaders hold of the memory it tells."""

from __future__ import annotations

import multiprocessing.process
from collections.abc import Mapping
from dataclasses import replace

from tensorlens.frameworks.queues import total
from tensorlens.heap import instances
from tensorlens.heap.attributes import MissingClass, content_of, imported
from tensorlens.records.ledger import Ledger, Term
from tensorlens.records.queues import Queue
from tensorlens.units import format_bytes

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


def with_queued_input(ledgers: Mapping[str, Ledger]) -> Mapping[str, Ledger]:
    """Return the ledgers, the host's with a term for what loaders that are alive hold.

    It is a part of the figure that counts that memory: shared memory of workers is of ``other``,
    TensorFlow's of ``allocated``. What Keras queues as NumPy's arrays is in the heap's term.
    Without loaders there is no term.
    """
    host = ledgers.get("cpu")
    if host is None:
        return ledgers
    found = host
    for add in (_workers, _buffers):
        try:
            found = add(found)
        except Exception:
            # a queue that cannot be looked at is not told; the ledger is as it was
            continue
    return ledgers if found is host else {**ledgers, "cpu": found}


def _workers(ledger: Ledger) -> Ledger:
    kind = imported("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter")
    if kind is MissingClass or not content_of(multiprocessing.process).get("_children"):
        return ledger
    from tensorlens.frameworks.torch.loaders.queue import parts_of

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
    term = Term(figure, KEY, LABEL, nbytes, text)
    missing = ledger.missing if nbytes is not None else {**ledger.missing, KEY: reason}
    return replace(ledger, parts=(*ledger.parts, term), missing=missing)
