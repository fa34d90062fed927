"""Tensors that are likely gradients: lists of tensors with the shapes of a list of weights."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.python.framework.indexed_slices import IndexedSlices
from tensorflow.python.framework.ops import EagerTensor

from tensorlens.frameworks.keras.names import variables_of
from tensorlens.frameworks.tensorflow.census.rows import CensusRows, Heap
from tensorlens.heap.attributes import content_of, dict_of, items_of

NOTE = "taken for a gradient: it stands in a list of tensors with the shapes of the weights"
_MAX_LENGTH = 100_000
"""A longer list is no list of a model's gradients."""

_Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Gradient:
    """A tensor that is a gradient, or a part of a sparse one."""

    row: int
    weight: int
    """Row of the weight's value."""
    suffix: str
    """Suffix to the weight's name."""


class WeightLists:
    """The lists of variables that a program may ask gradients for, by their shapes."""

    def __init__(self, heap: Heap, rows: CensusRows) -> None:
        self._rows = rows
        self.contents: list[Any] = []
        """The ``__dict__`` of each sparse gradient that was read."""
        self._lists: dict[int, dict[_Shapes, list[int]]] = {}
        """Rows of weights by the number of weights and their shapes."""
        for optimizer in heap.optimizers:
            self._add(items_of(content_of(optimizer).get("_trainable_variables")))
        for layer in heap.layers:
            self._add(_trainable_variables(layer))
        variable_types = {type(each) for each in (*heap.variables, *heap.keras_variables)}
        for each in heap.lists:
            items = _items(each)
            if items and type(items[0]) in variable_types:
                self._add(items)

    def _add(self, variables: Sequence[Any]) -> None:
        rows = [self._rows.row_numbers.get(id(each), -1) for each in variables]
        if rows and min(rows) >= 0:
            same_length = self._lists.setdefault(len(rows), {})
            shapes = tuple(self._rows.rows[row].fact.shape for row in rows)
            same_length.setdefault(shapes, rows)

    def gradients(self, heap: Heap) -> Iterator[Gradient]:
        """Yield the likely gradients among the heap's lists."""
        for each in heap.lists:
            items = _items(each)
            # a single tensor has the shape of a weight too often
            if len(items) < 2 or not _are_gradients(items):
                continue
            for shapes, weights in self._lists.get(len(items), {}).items():
                if all(map(self._fits, items, shapes)):
                    yield from self._pair(items, weights)
                    break

    def _fits(self, item: Any, shape: tuple[int, ...]) -> bool:
        """Tell whether an item can be the gradient of a weight; a sparse one has fewer rows."""
        if item is None:
            return True
        is_sparse = type(item) is IndexedSlices
        row = self._rows.row(content_of(item).get("_values") if is_sparse else item)
        if row is None or row.is_value:
            return False
        found = row.fact.shape
        return found[1:] == shape[1:] if is_sparse else found == shape

    def _pair(self, items: Sequence[Any], weights: Sequence[int]) -> Iterator[Gradient]:
        self.contents += [dict_of(each) for each in items if type(each) is IndexedSlices]
        for item, weight in zip(items, weights, strict=True):
            for part, suffix in _parts(item):
                if id(part) in self._rows.row_numbers:
                    yield Gradient(self._rows.row_numbers[id(part)], weight, suffix)


def _items(found: list[Any]) -> list[Any]:
    """Return a list's items; if another thread is filling the list, those that are there."""
    # the collector visits the last item first
    return gc.get_referents(found)[::-1] if 0 < len(found) <= _MAX_LENGTH else []


def _are_gradients(items: Sequence[Any]) -> bool:
    types = {type(each) for each in items}
    return types <= {EagerTensor, IndexedSlices, type(None)} and types != {type(None)}


def _parts(gradient: Any) -> list[tuple[Any, str]]:
    """Return the tensors of a gradient, each with its suffix to the weight's name."""
    if type(gradient) is EagerTensor:
        return [(gradient, "grad")]
    if type(gradient) is not IndexedSlices:
        return []
    content = content_of(gradient)
    found = [(content.get(f"_{part}"), part) for part in ("values", "indices", "dense_shape")]
    return [(each, f"grad.{part}") for each, part in found if type(each) is EagerTensor]


def _trainable_variables(model: Any) -> list[Any]:
    """Return ``model.trainable_variables``, each once, in the same order."""
    found = {id(owned.variable): owned.variable for owned in variables_of(model)}
    return [each for each in found.values() if content_of(each).get("_trainable") is True]
