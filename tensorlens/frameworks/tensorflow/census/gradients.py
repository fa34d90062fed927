"""Finds gradients: lists of tensors that go with a model's weights.

TensorFlow keeps nothing that leads from a gradient to its weight. A list whose tensors have the
shapes of a model's weights, one for one, is taken for their gradients, since ``tape.gradient``
returns a list in the order of the variables it was given.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.python.framework.indexed_slices import IndexedSlices
from tensorflow.python.framework.ops import EagerTensor

from tensorlens.frameworks.keras.layers import variables_of
from tensorlens.frameworks.tensorflow.census.rows import CensusRows, Heap
from tensorlens.heap.attributes import content_of, dict_of, items_of

NOTE = "taken for a gradient: it stands in a list of tensors with the shapes of the weights"
_LONGEST = 100_000
"""A model has fewer variables."""

_Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Gradient:
    """A tensor that is a gradient, or a part of a sparse one."""

    row: int
    weight: int
    """The row of the weight's value."""
    suffix: str
    """Suffix of the weight's name."""


def _parts_of(gradient: Any) -> list[tuple[Any, str]]:
    """Return the tensors of a gradient, and what is added to the weight's name for each."""
    if type(gradient) is EagerTensor:
        return [(gradient, "grad")]
    if type(gradient) is not IndexedSlices:
        return []
    content = content_of(gradient)
    found = [(content.get(f"_{part}"), part) for part in ("values", "indices", "dense_shape")]
    return [(each, f"grad.{part}") for each, part in found if type(each) is EagerTensor]


def _items(found: list[Any]) -> list[Any]:
    """Return what is in a list. Another thread may be making it: some places are empty then."""
    # the collector begins with the last
    return gc.get_referents(found)[::-1] if 0 < len(found) <= _LONGEST else []


class Weights:
    """The lists of variables that gradients may have been asked for, by their shapes."""

    def __init__(self, heap: Heap, rows: CensusRows) -> None:
        self._rows = rows
        self.contents: list[Any] = []
        """The ``__dict__`` of the sparse gradients that were looked into."""
        self._lists: dict[int, dict[_Shapes, list[int]]] = {}
        for optimizer in heap.optimizers:
            self._add(items_of(content_of(optimizer).get("_trainable_variables")))
        for layer in heap.layers:
            self._add(_trainable(layer))
        variables = {type(each) for each in (*heap.variables, *heap.keras_variables)}
        for each in heap.lists:
            items = _items(each)
            if items and type(items[0]) in variables:
                self._add(items)

    def _add(self, variables: Sequence[Any]) -> None:
        rows = [self._rows.of.get(id(each), -1) for each in variables]
        if rows and min(rows) >= 0:
            alike = self._lists.setdefault(len(rows), {})
            alike.setdefault(tuple(self._rows.all[row].fact.shape for row in rows), rows)

    def likely(self, heap: Heap) -> Iterator[Gradient]:
        """Give what is taken for a gradient."""
        for each in heap.lists:
            items = _items(each)
            # one tensor alone has the shape of a weight too often
            if len(items) < 2 or not self._are_gradients(items):
                continue
            for shapes, weights in self._lists.get(len(items), {}).items():
                if all(map(self._fits, items, shapes)):
                    yield from self._paired(items, weights)
                    break

    def _are_gradients(self, items: Sequence[Any]) -> bool:
        kinds = {type(each) for each in items}
        return kinds <= {EagerTensor, IndexedSlices, type(None)} and kinds != {type(None)}

    def _fits(self, item: Any, shape: tuple[int, ...]) -> bool:
        """Tell whether an item can be the gradient of a weight; a sparse one has fewer rows."""
        if item is None:
            return True
        is_sparse = type(item) is IndexedSlices
        row = self._rows.of.get(id(content_of(item).get("_values") if is_sparse else item))
        if row is None or self._rows.is_value(row):
            return False
        found = self._rows.all[row].fact.shape
        return found[1:] == shape[1:] if is_sparse else found == shape

    def _paired(self, items: Sequence[Any], weights: Sequence[int]) -> Iterator[Gradient]:
        self.contents += [dict_of(each) for each in items if type(each) is IndexedSlices]
        for item, weight in zip(items, weights, strict=True):
            for part, suffix in _parts_of(item):
                if id(part) in self._rows.of:
                    yield Gradient(self._rows.of[id(part)], weight, suffix)


def _trainable(model: Any) -> list[Any]:
    """Return the variables that ``model.trainable_variables`` gives, each once, in that order."""
    found = {id(owned.variable): owned.variable for owned in variables_of(model)}
    return [each for each in found.values() if content_of(each).get("_trainable") is True]
