"""Gives every row its one best name, and its role.

In this order: its path in a model or an optimizer; the weight whose gradient it is; the variable,
attribute or container that holds it; the line that made it.
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
from tensorlens.frameworks.keras.names import (
    LayerNames,
    OptimizerNames,
    variables_of,
)
from tensorlens.frameworks.tensorflow.census.rows import CensusRows, Heap, contents
from tensorlens.frameworks.tensorflow.graphs.titles import DATA, HANDLE_NBYTES
from tensorlens.heap import anchors, find_holders
from tensorlens.heap.attributes import class_name, content_of, dict_of, is_subtype, items_of
from tensorlens.records.families import HANDLE, HANDLE_OF_DATA
from tensorlens.records.names import ATTRIBUTE, INDEX, KEY, Names

_INTERNAL = ("tensorflow", "keras")
_STORAGE = "_storage"
_TRACKED = "_self_unconditional_dependency_names"


class NamedRows:
    """Names the rows, and fills in their roles, modules, holders and notes."""

    def __init__(self, heap: Heap, rows: CensusRows, roots: Sequence[CensusRoot]) -> None:
        self.names = Names()
        self._heap, self._rows = heap, rows
        self._loose: set[int] = set()
        self._trainable = {id(each) for each in heap.variables if _is_trainable(each)}
        # of the rows: a cycle would keep the heap, as a holder of all in it
        self._layers = LayerNames(self.names, rows.give)
        self._optimizers = self._name_owned(roots)
        weights = Weights(heap, rows)
        self._gradients = [*weights.likely(heap)]
        # Python makes the dict of an instance when it is first asked for
        heap.objects.extend(weights.contents)
        heap.objects.extend(contents(heap))
        self._name_gradients()
        self._ask_holders(roots)
        self._name_gradients()
        self._note_inputs()
        self._forget_lists()
        self._name_handles()

    def _name_owned(self, roots: Sequence[CensusRoot]) -> dict[int, int]:
        """Name what layers, metrics and optimizers hold; return the nodes of the optimizers."""
        heap = self._heap
        given = self._layers.given
        optimizers = OptimizerNames(self.names, self._rows.give, lambda item: given.get(id(item)))
        self._layers.add_roots(roots)
        self._layers.add_layers(heap.layers)
        optimizers.add_all(heap.optimizers, roots)
        self._layers.add_variables(
            each for each in heap.keras_variables if id(each) not in optimizers.given
        )
        return optimizers.anchors

    def _name_gradients(self) -> None:
        """Name gradients after those weights that have a name by now."""
        for each in self._gradients:
            found, parent = self._rows.all[each.row], self._rows.all[each.weight].name
            if found.name < 0 and parent >= 0:
                found.name, found.role = self.names.attribute(parent, each.suffix), "gradient"
                found.note = NOTE

    def _ask_holders(self, roots: Sequence[CensusRoot]) -> None:
        """Name what is left by the variable, attribute or container that holds it."""
        aside = {handle for handle, _ in self._rows.handles}
        aside.update(each.row for each in self._gradients)
        rows = self._rows.all
        wanted = [
            row
            for row, each in enumerate(rows)
            if each.name < 0 and each.owner and row not in aside
        ]
        # a variable's value is held by what holds the variable
        targets = array("Q", (rows[row].owner for row in wanted))
        if not targets:
            return
        layers = {each: self.names.text(path) for each, path in self._layers.paths.items()}
        named = {**layers, **self._optimizers, **self._places(roots)}
        first = len(self.names)
        held = find_holders(
            self._heap.objects,
            targets,
            anchors(_INTERNAL),
            self.names,
            loose=self._loose,
            named=named,
        )
        self._pass_over_wrappers(first)
        of_optimizers = {self.names.values[node] for node in self._optimizers.values()}
        for row, node in zip(wanted, held, strict=True):
            if node >= 0:
                self._rows.all[row].name = node
                self._set_role(row, of_optimizers)

    def _pass_over_wrappers(self, first: int) -> None:
        """Name items of the lists that TensorFlow tracks by the list: they are in others in it."""
        names = self.names
        for node in range(first, len(names)):
            parent = names.parents[node]
            if parent >= first and names.kinds[parent] == ATTRIBUTE:
                text = names.texts[names.values[parent]]
                if text in (_STORAGE, _TRACKED):
                    names.parents[node] = names.parents[parent]
                if text == _TRACKED and names.kinds[node] == KEY:
                    place = names.texts[names.values[node]].strip("'")
                    if place.isdecimal():
                        names.kinds[node], names.values[node] = INDEX, int(place)

    def _places(self, roots: Sequence[CensusRoot]) -> dict[int, int]:
        """Return the nodes that names below other roots begin with."""
        alone = sum(root.name is None for root in roots) == 1
        found: dict[int, int] = {}
        for root in roots:
            kind = type(root.item)
            if id(root.item) in self._optimizers or issubclass(kind, kinds.layer()):
                continue
            is_home = alone and issubclass(kind, Module)
            text = "" if root.name is None and is_home else root.name
            found[id(root.item)] = self.names.text(_own_name(root.item) if text is None else text)
        return found

    def _set_role(self, row: int, of_optimizers: Collection[int]) -> None:
        found = self._rows.all[row]
        if self.names.values[self.names.root(found.name)] in of_optimizers:
            found.role = "optimizer"
            return
        if self._rows.is_value(row):
            found.role = "parameter" if found.owner in self._trainable else "buffer"

    def _note_inputs(self) -> None:
        """Name the data of datasets, and note what these are known by."""
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
        """Leave what only a list in native code holds, as a tape's, to the line that made it."""
        names = self.names
        lists = {node for node in self._loose if names[node] == "<list>"}
        for row in self._rows.all:
            if row.name >= 0 and names.root(row.name) in lists:
                row.name = -1

    def _name_handles(self) -> None:
        """Name handles after their variables."""
        rows = self._rows.all
        for handle, value in self._rows.handles:
            if rows[value].name < 0 and rows[handle].name >= 0:
                rows[value].name = self.names.attribute(rows[handle].name, "value")
            elif rows[handle].name < 0 and rows[value].name >= 0:
                rows[handle].name = self.names.attribute(rows[value].name, "handle")
                rows[handle].note = rows[handle].note or HANDLE


def _is_trainable(variable: Any) -> bool:
    return content_of(variable).get("_trainable") is True


def _own_name(item: Any) -> str:
    """Return what a variable was called by the program, of anything else its class."""
    name = None
    if is_subtype(type(item), BaseResourceVariable):
        name = content_of(item).get("_handle_name")
    if type(name) is not str:
        return class_name(item)
    # as TensorFlow calls the first result of the operation that makes it
    return name.removesuffix(":0")


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
