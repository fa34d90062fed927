"""The transformations a ``tf.data`` dataset was made of, read from its Python objects."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from tensorlens.frameworks.keras.kinds import class_name, content_of

AUTOTUNE = -1
"""``tf.data.AUTOTUNE``."""
_SIZES = ("_buffer_size", "_num_parallel_calls")
_BUFFERING = ("Prefetch", "Shuffle", "Cache", "Parallel", "Snapshot", "Service", "MapAndBatch")
"""What the names of classes hold whose iterators keep elements
(tensorflow/python/data/ops, TensorFlow 2.21)."""


@dataclass(frozen=True, slots=True)
class Transformation:
    """One dataset of the chain."""

    kind: str
    """``Prefetch``, ``Shuffle``, ``ParallelMap``."""
    size: int | None
    """Its buffer or its parallel calls; :data:`AUTOTUNE`, or None where it has none."""
    is_known: bool
    """Whether it is TensorFlow's own."""

    @property
    def buffers(self) -> bool:
        """Whether its iterators keep elements, or may."""
        return not self.is_known or any(part in self.kind for part in _BUFFERING)


def transformations(dataset: Any) -> list[Transformation]:
    """Return a dataset and what it is made from, the last transformation first."""
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
    for name in _SIZES:
        value = content.get(name)
        if value is not None:
            with contextlib.suppress(Exception):
                return int(value.numpy())
    return None
