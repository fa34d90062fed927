"""TensorFlow's and Keras's objects in the heap, and the rows of a census while it goes on."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tensorflow.python.data.ops.dataset_ops import DatasetV2
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from tensorlens.frameworks.host.census_table import (
    Births,
    add_births,
    choose_counted,
    name_the_rest,
    number_of,
)
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.tensorflow.census.tensor_reader import (
    UNREAD,
    VARIABLE,
    Fact,
    read_tensors,
)
from tensorlens.frameworks.tensorflow.counters import torch_device_name
from tensorlens.heap import live_objects, select
from tensorlens.heap.attributes import content_of, dict_of
from tensorlens.records.names import Names
from tensorlens.records.tensors import TensorTable
from tensorlens.roles import ROLES, Role

_ROLES = {role: number for number, role in enumerate(ROLES)}


@dataclass(slots=True)
class CensusRow:
    """One tensor, and what is learned of it while a census goes on."""

    fact: Fact
    device: str
    owner: int
    """``id()`` of what holders refer to it by: a variable in place of its value; 0: not known."""
    name: int = -1
    role: Role = "other"
    module: str | None = None
    note: str | None = None


@dataclass(slots=True)
class Heap:
    """TensorFlow's and Keras's objects in the heap, by kind."""

    objects: list[Any]
    tensors: list[Any]
    variables: list[Any]
    keras_variables: list[Any]
    layers: list[Any]
    optimizers: list[Any]
    datasets: list[Any]
    iterators: list[Any]
    lists: list[Any]


class CensusRows:
    """The rows, and which one stands for which object.

    Nothing of the objects met is run.
    """

    def __init__(self, heap: Heap) -> None:
        self.all: list[CensusRow] = []
        self.of: dict[int, int] = {}
        """``id()`` of a tensor or variable to its row; a variable's is that of its value."""
        self.unread = 0
        facts = read_tensors(heap.tensors)
        owners = self._owners(heap)
        start: dict[int, int] = {}
        for position, fact in enumerate(facts):
            tensor = heap.tensors[fact.tensor]
            if fact.kind == UNREAD and not fact.nbytes:
                self.unread += 1
                continue
            start[position] = len(self.all)
            self._add(fact, tensor, owners.get(id(tensor), 0))
        self.handles = [
            (start[row.fact.parent], value)
            for value, row in enumerate(self.all)
            if row.fact.parent in start
        ]
        """``(row of a handle, row of its variable's value)``."""
        for variable in heap.variables:
            self._alias(variable, content_of(variable).get("_handle"))
        for variable in heap.keras_variables:
            self._alias(variable, content_of(variable).get("_value"))

    def _owners(self, heap: Heap) -> dict[int, int]:
        """Return the handle of each variable, by ``id()``, to what refers to the variable."""
        outer = {id(content_of(each).get("_value")): id(each) for each in heap.keras_variables}
        return {
            id(content_of(each).get("_handle")): outer.get(id(each), id(each))
            for each in heap.variables
        }

    def _add(self, fact: Fact, tensor: Any, owner: int) -> None:
        self.of[id(tensor)] = len(self.all)
        if fact.kind == VARIABLE:
            self.all.append(CensusRow(fact, torch_device_name(tensor.device), owner))
        else:
            device = torch_device_name(tensor.backing_device)
            self.all.append(CensusRow(fact, device, owner or id(tensor)))

    def _alias(self, variable: Any, inner: Any) -> None:
        row = self.of.get(id(inner))
        if row is not None:
            self.of[id(variable)] = row

    def give(self, item: Any, node: int, role: Role) -> None:
        """Name a variable, if it has no name yet."""
        row = self.row(item)
        if row is not None and row.name < 0:
            row.name, row.role = node, role

    def is_value(self, row: int) -> bool:
        """Tell whether a row is a variable's value."""
        return self.all[row].fact.kind == VARIABLE

    def row(self, item: Any) -> CensusRow | None:
        """Return the row of a tensor or variable."""
        place = self.of.get(id(item))
        return None if place is None else self.all[place]


def tabulate(rows: Sequence[CensusRow], names: Names, births: Births) -> TensorTable:
    """Return the table of everything found; each buffer is counted in one row."""
    table = TensorTable()
    table.names = names
    for row in rows:
        append(table, row)
    table.alias = array("i", [-1]) * len(table)
    add_births(table, births)
    name_the_rest(table)
    first: dict[tuple[int, int], int] = {}
    places = array("i")
    for number, row in enumerate(rows):
        address = row.fact.address
        key = (table.device[number], address) if address else (-1, number)
        places.append(first.setdefault(key, number))
    choose_counted(table, places)
    return table


def append(table: TensorTable, row: CensusRow) -> None:
    """Add a row to a table; who made it and whose alias it is are to be filled in."""
    fact = row.fact
    table.nbytes.append(fact.nbytes)
    table.storage.append(fact.address)
    table.storage_nbytes.append(fact.buffer_nbytes)
    table.offset.append(_elements(fact))
    table.role.append(_ROLES[row.role])
    table.device.append(number_of(table.devices, row.device))
    table.dtype.append(number_of(table.dtypes, fact.dtype))
    table.shape.append(number_of(table.shapes, fact.shape))
    table.stride.append(-1)
    table.name.append(row.name)
    table.module.append(-1 if row.module is None else table.names.text(row.module))
    table.held_by.append(-1)
    table.note.append(-1 if row.note is None else number_of(table.notes, row.note))


def _elements(fact: Fact) -> int:
    count = prod(fact.shape)
    size = fact.nbytes // count if count else 0
    return fact.offset // size if size else 0


def look() -> Heap:
    """Return the heap's objects by kind."""
    objects = live_objects()
    found = select(
        objects,
        (
            *(EagerTensor, BaseResourceVariable),
            *(kinds.tensorflow_variable(), kinds.layer(), kinds.optimizer()),
            *(DatasetV2, OwnedIterator),
        ),
        (list,),
    )
    return Heap(objects, *found)


def contents(heap: Heap) -> list[Any]:
    """Return the ``__dict__`` of everything that was asked for it."""
    asked = (
        *(heap.variables, heap.keras_variables, heap.layers, heap.optimizers),
        heap.datasets,
    )
    found = (dict_of(item) for items in asked for item in items)
    return [content for content in found if content is not None]
