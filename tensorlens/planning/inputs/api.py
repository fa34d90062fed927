"""``tensorlens.inputs()``: the batches that a loader holds ahead of the step; and plans of them."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from tensorlens.errors import UsageError
from tensorlens.records.documents import Document
from tensorlens.records.queues import Queue
from tensorlens.records.run import Run, current_run


@dataclass(frozen=True, slots=True)
class Plan(Document):
    """Bytes of batches by batch size and shape; as a table one row for each pair."""

    SCHEMA: ClassVar[str] = "tensorlens.plan"
    VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = "plan"
    PRESENTER: ClassVar[str] = "tensorlens.planning.inputs.present_plan"

    shapes: tuple[tuple[int, ...], ...]
    batch_sizes: tuple[int, ...]
    dtype: str
    itemsize: int
    """Bytes of one number."""
    loader: str
    """Kind of queue: ``torch``, ``keras`` or ``tf.data``."""
    workers: int
    prefetch: int
    """``prefetch_factor``, ``max_queue_size``, or the argument of ``prefetch()``."""
    ahead: int
    """Batches in the full queue."""
    rule: str
    """The rule behind ``ahead``, with file and version."""
    shape: tuple[int, ...] | None = None
    """The requested shape; None if there are several."""
    batch: int | None = None
    """The requested batch size; None if there are several."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    @property
    def factor(self) -> int:
        """Batches held at most: those ahead, and the one that the step uses."""
        return self.ahead + 1

    @property
    def nbytes(self) -> int | None:
        """Bytes of one batch of the requested shape and size; None if there are several."""
        if self.shape is None or self.batch is None:
            return None
        return self.batch_nbytes(self.batch, self.shape)

    @property
    def held(self) -> int | None:
        """Bytes of the full queue and the batch in use; None as for ``nbytes``."""
        return None if self.nbytes is None else self.nbytes * self.factor

    def batch_nbytes(self, batch: int, shape: tuple[int, ...]) -> int:
        """Return the bytes of one batch: ``batch x extents x bytes of a number``."""
        return batch * math.prod(shape) * self.itemsize

    def rows(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the table: each batch size with the bytes of one batch of each shape."""
        return tuple(
            (batch, tuple(self.batch_nbytes(batch, shape) for shape in self.shapes))
            for batch in self.batch_sizes
        )

    def _fields(self) -> dict[str, Any]:
        table = [figures for _, figures in self.rows()]
        held = [[each * self.factor for each in figures] for figures in table]
        return {**asdict(self), "nbytes": table, "held_nbytes": held}


_NAMES = {"bool": 1, "half": 2, "bfloat16": 2, "float": 4, "double": 8, "int": 4, "long": 8}
_BITS = re.compile(r"q?u?(?:int|float|complex)(8|16|32|64|128)(?:_\w+)?")
_AROUND = (1, 2, 4, 8, 16)
"""Neighbours of a single batch size or extent, in quarters of it."""
_SIDES = (32, 64, 128, 256, 512, 1024)
_BATCHES = (1, 8, 16, 32, 64, 128, 256, 512, 1024)

_TORCH = "num_workers x prefetch_factor (torch/utils/data/dataloader.py, torch 2.13)"
_KERAS = (
    "max_queue_size + 1: so many in future_queue, and one that waits to be put there"
    " (keras/src/trainers/data_adapters/py_dataset_adapter.py, Keras 3.15)"
)
_KERAS_ALONE = (
    "with one worker and no processes Keras 3.15 has no queue of its own and does not use"
    " max_queue_size; tf.data's prefetch(AUTOTUNE) begins with 1 and grows when the loop waits"
)
_TF = "buffer_size of prefetch() (tensorflow/core/kernels/data/prefetch_dataset_op.cc)"


def plan(
    shape: Sequence[int | None],
    dtype: Any = "float32",
    batch: int | Iterable[int] | None = None,
    workers: int = 0,
    prefetch: int | None = None,
    *,
    loader: str = "torch",
    resolutions: int | Iterable[int] | None = None,
) -> Plan:
    """Return the bytes of batches by batch size and resolution, and of a queue of them.

    One batch is ``batch x extents x bytes of a number``: 256 images of 256x256x3 in float32 are
    192 MiB. Labels, and what a step makes of the batch, come on top.

    Args:
        shape: one sample, without the batch: ``(256, 256, 3)``. ``None`` stands for the
            resolutions: ``(None, None, 3)``.
        dtype: a name such as ``"float32"``, or a dtype of NumPy, torch or TensorFlow.
        batch: one batch size, whose neighbours are shown too, or several; None for 1 to 1024.
        workers: processes or threads that make batches.
        prefetch: ``prefetch_factor`` (2 unless given), ``max_queue_size`` (10) or the argument of
            ``prefetch()`` (1).
        loader: ``"torch"`` (DataLoader), ``"keras"`` (PyDataset) or ``"tf.data"``.
        resolutions: for the ``None`` of ``shape``, one or several; 32 to 1024 unless given.

    Raises:
        UsageError: there is no such loader or dtype, or a number is invalid.
    """
    sizes, one = _batches(batch)
    shapes, asked = _shapes(shape, resolutions)
    count = _number("workers", workers, least=0)
    ahead, depth, rule = _queue(loader, count, prefetch)
    name, itemsize = _dtype(dtype)
    return Plan(
        shapes=shapes,
        batch_sizes=sizes,
        dtype=name,
        itemsize=itemsize,
        loader=loader,
        workers=count,
        prefetch=depth,
        ahead=ahead,
        rule=rule,
        shape=asked,
        batch=one,
    )


def _queue(loader: str, workers: int, prefetch: int | None) -> tuple[int, int, str]:
    """Return the batches ahead, the depth of the prefetching, and the rule."""
    if loader == "torch":
        if not workers:
            return 0, 0, f"without workers nothing is held ahead; else {_TORCH}"
        depth = 2 if prefetch is None else _number("prefetch", prefetch, least=1)
        return workers * depth, depth, f"{workers} x {depth} = {_TORCH}"
    if loader == "keras":
        depth = 10 if prefetch is None else _number("prefetch", prefetch, least=1)
        if workers <= 1:
            return 1, depth, _KERAS_ALONE
        return depth + 1, depth, f"{depth} + 1 = {_KERAS}"
    if loader == "tf.data":
        depth = 1 if prefetch is None else _number("prefetch", prefetch, least=0)
        return depth, depth, _TF
    raise UsageError(f"no loader {loader!r}: the loaders are torch, keras and tf.data")


def _batches(batch: int | Iterable[int] | None) -> tuple[tuple[int, ...], int | None]:
    if batch is None:
        return _BATCHES, None
    if isinstance(batch, Iterable) and not isinstance(batch, str):
        found = tuple(_number("batch", each, least=1) for each in batch)
        if not found:
            raise UsageError("batch: give at least one batch size")
        return found, found[0] if len(found) == 1 else None
    one = _number("batch", batch, least=1)
    return tuple(one * times // 4 for times in _AROUND if one * times % 4 == 0), one


def _shapes(
    shape: Sequence[int | None], resolutions: int | Iterable[int] | None
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...] | None]:
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise UsageError(
            f"shape = {shape!r}: give the extents of one sample, such as (256, 256, 3)"
        )
    extents = [None if each is None else _number("shape", each, least=0) for each in shape]
    if None in extents or resolutions is not None:
        given = _SIDES if resolutions is None else resolutions
        sides = tuple(given) if isinstance(given, Iterable) else (given,)
        places = [at for at, each in enumerate(extents) if each is None] or _spatial(extents)
        if not sides:
            raise UsageError("resolutions: give at least one")
        several = tuple(
            _at(extents, {place: _number("resolutions", side, least=1) for place in places})
            for side in sides
        )
        return several, several[0] if len(several) == 1 else None
    asked = _at(extents, {})
    places = _spatial(extents)
    found = []
    for times in _AROUND:
        scaled = {place: (asked[place] * times) / 4 for place in places}
        if all(each == int(each) and each >= 1 for each in scaled.values()):
            found.append(_at(extents, {place: int(each) for place, each in scaled.items()}))
    return tuple(dict.fromkeys(found or [asked])), asked


def _spatial(extents: Sequence[int | None]) -> list[int]:
    """Return the indices of the resolution: the two largest of three or more, or the largest."""
    order = sorted(range(len(extents)), key=lambda at: -(extents[at] or 0))
    return sorted(order[: 2 if len(extents) > 2 else 1])


def _at(extents: Sequence[int | None], changed: dict[int, int]) -> tuple[int, ...]:
    return tuple(changed.get(at, each or 0) for at, each in enumerate(extents))


def _number(name: str, value: Any, *, least: int) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} = {value!r}: give a whole number") from None
    if found < least:
        raise UsageError(f"{name} = {found}: give at least {least}")
    return found


def _dtype(dtype: Any) -> tuple[str, int]:
    if isinstance(dtype, type):
        # as NumPy reads Python's types; torch calls float32 float
        dtype = {float: "float64", int: "int64", complex: "complex128"}.get(dtype, dtype)
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if not isinstance(name, str):
        name = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    name = name.rpartition(".")[2]
    match = _BITS.fullmatch(name)
    if match:
        return name, int(match[1]) // 8
    if name in _NAMES:
        return name, _NAMES[name]
    raise UsageError(f"no dtype {name!r}: give one such as float32, bfloat16, uint8 or int64")


class Inputs:
    """Returns the queue of a loader; :attr:`plan` predicts it.

    Called with a loader or with the iterator of a loop, at any time and from any thread, it
    returns a :class:`~tensorlens.records.queues.Queue`. Nothing is taken from the loader, no code
    of its dataset is run, and nothing is kept alive.

    It knows torch's DataLoader and its iterators, wrappers of one (``enumerate``, ``tqdm``, objects
    with an attribute such as ``dataloader``), ``tf.data`` datasets and iterators, Keras's PyDataset
    and generators while a model is fitted with them, NumPy arrays, and Python's queues.
    """

    plan: Callable[..., Plan] = staticmethod(plan)

    def __call__(self, loader_or_iterator: Any, *, batch: Any = None) -> Queue:
        """Return the queue of a loader or iterator.

        Args:
            loader_or_iterator: the loader, or the object that a loop iterates over.
            batch: one batch, for its size if no waiting batch can be read.

        Raises:
            UsageError: the object has no known queue.
        """
        from tensorlens.frameworks.queues.detection import find_queue

        if isinstance(loader_or_iterator, type):
            name = loader_or_iterator.__name__
            raise UsageError(f"inputs() takes an instance, {name}(), not the class")
        found = find_queue(loader_or_iterator, batch)
        if found is None:
            kind = type(loader_or_iterator).__name__
            raise UsageError(
                f"inputs() knows no queue of {kind}: give a DataLoader, a tf.data dataset, a Keras"
                " PyDataset, an array, or an iterator over one of them"
            )
        return found

    def __repr__(self) -> str:
        return "<function tensorlens.inputs>"


inputs = Inputs()
"""The instance behind :func:`tensorlens.inputs`."""
