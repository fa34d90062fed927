"""Finds gradients: what tapes gave as such, else lists of tensors that go with a model's weights.

TensorFlow keeps nothing that leads from a gradient to its weight. What tapes give is noted only
while someone watches, and not what graph functions return. Of what was made else, a list whose
tensors have the shapes of a model's weights, one for one, is taken for their gradients, since
``tape.gradient`` returns a list in the order of the variables it was given; and so is a tensor
that stands in a tuple with a variable of its shape, as optimizers are given them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.python.framework.indexed_slices import IndexedSlices
from tensorflow.python.framework.ops import EagerTensor

from tensorlens.frameworks.keras.layers import walk
from tensorlens.frameworks.tensorflow.attribution.tape_gradients import NotedGradients
from tensorlens.frameworks.tensorflow.census.rows import Heap, Rows
from tensorlens.heap.attributes import content_of, items_of
from tensorlens.heap.fallback import dict_of

NOTE = "taken for a gradient: it stands in a list of tensors with the shapes of the weights"

Shape = tuple[int, ...]
UNKNOWN: Shape = (-1,)


_LONGEST = 100_000
"""A model has fewer variables."""


def _content(items: list[Any] | tuple[Any, ...]) -> list[Any]:
    """Return what is in a list or tuple.

    Another thread may be making it: some places are empty then.
    """
    if not 0 < len(items) <= _LONGEST:
        return []
    # the collector begins with the last
    return gc.get_referents(items)[::-1]


@dataclass(frozen=True, slots=True)
class Gradient:
    """A tensor that is a gradient, or a part of a sparse one."""

    row: int
    weight: int
    """The row of the weight's value."""
    suffix: str
    """Suffix of the weight's name."""
    note: str | None


def noted(rows: Rows, known: NotedGradients) -> Iterator[Gradient]:
    """Give the gradients that are known from tapes, of weights that still live."""
    for row, each in enumerate(rows.all):
        handle, suffix = known.of.get(each.number, (-1, ""))
        weight = rows.by_number.get(handle)
        if weight is not None and rows.is_value(weight):
            yield Gradient(row, weight, suffix, None)


class Weights:
    """The lists of variables that gradients may have been asked for, by their shapes."""

    def __init__(self, heap: Heap, rows: Rows, known: NotedGradients) -> None:
        self._rows, self._known = rows, known
        self.contents: list[Any] = []
        """The ``__dict__`` of the sparse gradients that were looked into."""
        self._lists: dict[int, dict[tuple[Shape, ...], list[int]]] = {}
        for optimizer in heap.optimizers:
            self._add(items_of(content_of(optimizer).get("_trainable_variables")))
        for layer in heap.layers:
            self._add(_trainable(layer))
        self._of_variables = {
            type(each) for each in (*heap.variables, *heap.keras_variables, *heap.distributed)
        }
        self._sparse = IndexedSlices
        self._gradients = {EagerTensor, self._sparse}
        for each in heap.lists:
            items = _content(each)
            if items and type(items[0]) in self._of_variables:
                self._add(items)

    def _add(self, variables: Sequence[Any]) -> None:
        rows = [self._rows.of.get(id(each), -1) for each in variables]
        if rows and min(rows) >= 0:
            alike = self._lists.setdefault(len(rows), {})
            alike.setdefault(tuple(map(self._shape, rows)), rows)

    def _shape(self, row: int) -> Shape:
        return self._rows.all[row].fact.shape

    def pairs(self, heap: Heap) -> Iterator[Gradient]:
        """Give what is taken for a gradient, of that of which tapes tell nothing."""
        first = {*self._gradients, type(None)}
        for each in heap.lists:
            items = _content(each)
            if items and type(items[0]) in first:
                yield from self._of_list(items)
            elif items and type(items[0]) is tuple and len(items[0]) == 2:
                for pair in items:
                    both = _content(pair) if type(pair) is tuple and len(pair) == 2 else []
                    if len(both) == 2:
                        yield from self._of_pair(*both)

    def _of_list(self, items: list[Any]) -> Iterator[Gradient]:
        # one tensor alone has the shape of a weight too often
        if len(items) < 2 or len(items) not in self._lists:
            return
        shapes = [None if item is None else self._shape_or_unknown(item) for item in items]
        for wanted, weights in self._lists[len(items)].items():
            if all(a is None or a == b for a, b in zip(shapes, wanted, strict=True)):
                if any(map(self._is_known, items)):
                    return
                for item, weight in zip(items, weights, strict=True):
                    if item is not None:
                        yield from self._parts(item, weight)
                return

    def _of_pair(self, gradient: Any, variable: Any) -> Iterator[Gradient]:
        weight = self._rows.of.get(id(variable))
        is_pair = type(gradient) in self._gradients and type(variable) in self._of_variables
        if weight is None or not is_pair:
            return
        if self._shape_of(gradient) == self._shape(weight) and not self._is_known(gradient):
            yield from self._parts(gradient, weight)

    def _is_known(self, item: Any) -> bool:
        tensor = content_of(item).get("_values") if type(item) is self._sparse else item
        row = self._rows.of.get(id(tensor))
        return row is not None and self._known.tells(self._rows.all[row].number)

    def _shape_of(self, item: Any) -> Shape | None:
        if type(item) is self._sparse:
            shape = content_of(item).get("_dense_shape")
            values = self._rows.of.get(id(content_of(item).get("_values")))
            if values is None:
                return None
            width = self._shape(values)[1:]
            return self._embedding(width) if shape is not None or width else None
        row = self._rows.of.get(id(item))
        return None if row is None or self._rows.is_value(row) else self._shape(row)

    def _shape_or_unknown(self, item: Any) -> Shape:
        shape = self._shape_of(item)
        return UNKNOWN if shape is None else shape

    def _embedding(self, width: Shape) -> Shape | None:
        """Return the shape of the one weight whose rows have this width."""
        lists = (shapes for alike in self._lists.values() for shapes in alike)
        shapes = {shape for each in lists for shape in each if shape[1:] == width}
        return shapes.pop() if len(shapes) == 1 else None

    def _parts(self, gradient: Any, weight: int) -> Iterator[Gradient]:
        if type(gradient) is not self._sparse:
            yield Gradient(self._rows.of[id(gradient)], weight, "grad", NOTE)
            return
        content = content_of(gradient)
        self.contents.append(dict_of(gradient))
        for part in ("values", "indices", "dense_shape"):
            row = self._rows.of.get(id(content.get(f"_{part}")))
            if row is not None:
                yield Gradient(row, weight, f"grad.{part}", NOTE)


def _trainable(model: Any) -> list[Any]:
    """Return the variables that ``model.trainable_variables`` gives, each once, in that order."""
    found = {id(owned.variable): owned.variable for owned in walk(model)}
    return [
        variable for variable in found.values() if content_of(variable).get("_trainable") is True
    ]
