"""Chooses a name and a role for every row.

The first of these that is known: the path in a model or an optimizer; the weight whose gradient it
is; the variable, attribute or container that holds it; the line that made it.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.python.framework.indexed_slices import IndexedSlices
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.module.module import Module
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from tensorlens.frameworks.base import CensusRoot
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.names import LayerNames, OptimizerNames, variables_of
from tensorlens.frameworks.tensorflow.census.rows import CensusRow, CensusRows, Heap, contents
from tensorlens.frameworks.tensorflow.graphs.runtime_blocks import DATA, HANDLE_NBYTES
from tensorlens.heap import anchors, find_holders
from tensorlens.heap.attributes import class_name, content_of, dict_of, is_subtype, items_of
from tensorlens.records.families import HANDLE, HANDLE_OF_DATA
from tensorlens.records.names import ATTRIBUTE, INDEX, KEY, Names

_INTERNAL = ("tensorflow", "keras")
_STORAGE = "_storage"
_DEPENDENCY_NAMES = "_self_unconditional_dependency_names"


class NamedRows:
    """Fills in the names, roles, modules and notes of rows."""

    def __init__(self, heap: Heap, rows: CensusRows, roots: Sequence[CensusRoot]) -> None:
        self.names = Names()
        self._heap, self._rows = heap, rows
        self._loose: set[int] = set()
        """First nodes of names that begin with an object because no variable holds it."""
        self._trainable = {
            id(each) for each in heap.variables if content_of(each).get("_trainable") is True
        }
        # a method of the rows, not of this: a cycle would keep the whole heap alive
        self._layers = LayerNames(self.names, rows.name_variable)
        self._optimizers = self._name_owned(roots)
        weights = WeightLists(heap, rows)
        self._gradients = [*weights.gradients(heap)]
        # dicts that Python made just now, when instances were first asked for theirs
        heap.objects.extend(weights.contents)
        heap.objects.extend(contents(heap))
        self._name_gradients()
        self._ask_holders(roots)
        self._name_gradients()
        self._name_inputs()
        self._forget_lists()
        self._name_handles()

    def _name_owned(self, roots: Sequence[CensusRoot]) -> dict[int, int]:
        """Name what layers, metrics and optimizers hold; return the nodes of the optimizers."""
        heap = self._heap
        named, name_variable = self._layers.named, self._rows.name_variable
        optimizers = OptimizerNames(self.names, name_variable, lambda item: named.get(id(item)))
        self._layers.add_roots(roots)
        self._layers.add_layers(heap.layers)
        optimizers.add_all(heap.optimizers, roots)
        self._layers.add_variables(
            each for each in heap.keras_variables if id(each) not in optimizers.named
        )
        return optimizers.anchors

    def _name_gradients(self) -> None:
        """Name gradients after their weights, if these have a name by now."""
        for each in self._gradients:
            row, parent = self._rows.rows[each.row], self._rows.rows[each.weight].name
            if row.name < 0 and parent >= 0:
                row.name, row.role = self.names.attribute(parent, each.suffix), "gradient"
                row.note = NOTE

    def _ask_holders(self, roots: Sequence[CensusRoot]) -> None:
        """Name the remaining rows by the variable, attribute or container that holds them."""
        excluded = {handle for handle, _ in self._rows.handles}
        excluded.update(each.row for each in self._gradients)
        wanted = [
            row
            for number, row in enumerate(self._rows.rows)
            if row.name < 0 and row.owner and number not in excluded
        ]
        # the holder of a variable holds its value
        targets = array("Q", (row.owner for row in wanted))
        if not targets:
            return
        layers = {each: self.names.text(path) for each, path in self._layers.paths.items()}
        named = {**layers, **self._optimizers, **self._root_nodes(roots)}
        first = len(self.names)
        held = find_holders(
            self._heap.objects,
            targets,
            anchors(_INTERNAL),
            self.names,
            loose=self._loose,
            named=named,
        )
        self._skip_wrappers(first)
        of_optimizers = {self.names.values[node] for node in self._optimizers.values()}
        for row, node in zip(wanted, held, strict=True):
            if node >= 0:
                row.name = node
                self._set_role(row, of_optimizers)

    def _skip_wrappers(self, first: int) -> None:
        """Name items of a tracked list after it, not after the inner list that holds them."""
        names = self.names
        for node in range(first, len(names)):
            parent = names.parents[node]
            if parent >= first and names.kinds[parent] == ATTRIBUTE:
                text = names.texts[names.values[parent]]
                if text in (_STORAGE, _DEPENDENCY_NAMES):
                    names.parents[node] = names.parents[parent]
                if text == _DEPENDENCY_NAMES and names.kinds[node] == KEY:
                    index = names.texts[names.values[node]].strip("'")
                    if index.isdecimal():
                        names.kinds[node], names.values[node] = INDEX, int(index)

    def _root_nodes(self, roots: Sequence[CensusRoot]) -> dict[int, int]:
        """Return the nodes of roots that are neither layers nor optimizers, by ``id()``."""
        is_alone = sum(root.name is None for root in roots) == 1
        found: dict[int, int] = {}
        for root in roots:
            kind = type(root.item)
            if id(root.item) in self._optimizers or issubclass(kind, kinds.layer()):
                continue
            text = root.name
            if text is None:
                text = "" if is_alone and issubclass(kind, Module) else _own_name(root.item)
            found[id(root.item)] = self.names.text(text)
        return found

    def _set_role(self, row: CensusRow, of_optimizers: Collection[int]) -> None:
        if self.names.values[self.names.root(row.name)] in of_optimizers:
            row.role = "optimizer"
        elif row.is_value:
            row.role = "parameter" if row.owner in self._trainable else "buffer"

    def _name_inputs(self) -> None:
        """Name the data of datasets, and add notes to the handles of datasets."""
        names, data = self.names, -1
        for dataset in (*self._heap.datasets, *self._heap.iterators):
            content = content_of(dataset)
            for row in filter(None, map(self._rows.row, items_of(content.get("_tensors")))):
                if row.role == "other":
                    row.role = "input"
                    parent, index = names.family(row.name) or (-1, 0)
                    if names[parent].endswith("._tensors"):
                        data = names.text(DATA) if data < 0 else data
                        row.name = names.index(data, index)
            for row in filter(None, map(self._rows.row, content.values())):
                if row.role == "other" and row.fact.buffer_nbytes <= HANDLE_NBYTES:
                    row.note = HANDLE_OF_DATA

    def _forget_lists(self) -> None:
        """Drop names of rows that only a list in native code holds, such as a tape's."""
        names = self.names
        lists = {node for node in self._loose if names[node] == "<list>"}
        for row in self._rows.rows:
            if row.name >= 0 and names.root(row.name) in lists:
                row.name = -1

    def _name_handles(self) -> None:
        """Name handles after their variables."""
        rows = self._rows.rows
        for handle, value in self._rows.handles:
            if rows[value].name < 0 and rows[handle].name >= 0:
                rows[value].name = self.names.attribute(rows[handle].name, "value")
            elif rows[handle].name < 0 and rows[value].name >= 0:
                rows[handle].name = self.names.attribute(rows[value].name, "handle")
                rows[handle].note = rows[handle].note or HANDLE


def _own_name(item: Any) -> str:
    """Return the name that the program gave to a variable; the class of anything else."""
    name = None
    if is_subtype(type(item), BaseResourceVariable):
        name = content_of(item).get("_handle_name")
    if type(name) is not str:
        return class_name(item)
    # TensorFlow adds the number of the operation's result
    return name.removesuffix(":0")


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
