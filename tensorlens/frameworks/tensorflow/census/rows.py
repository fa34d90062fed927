"""TensorFlow's and Keras's objects in the heap, and the rows of a census."""

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

from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.census_table import (
    add_births,
    choose_counted,
    name_the_rest,
    number_of,
)
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.tensorflow.census.tensor_reader import Fact, FactKind, read_tensors
from tensorlens.frameworks.tensorflow.counters import torch_device_name
from tensorlens.heap import live_objects, select
from tensorlens.heap.attributes import content_of, dict_of
from tensorlens.records.names import Names
from tensorlens.records.tensors import TensorTable
from tensorlens.roles import ROLES, Role

_ROLES = {role: number for number, role in enumerate(ROLES)}


@dataclass(slots=True)
class CensusRow:
    """A tensor, and what a census finds out about it."""

    fact: Fact
    device: str
    owner: int
    """``id()`` of what holders refer to: a variable for its value and its handle; 0 if unknown."""
    name: int = -1
    role: Role = "other"
    module: str | None = None
    note: str | None = None

    @property
    def is_value(self) -> bool:
        """Whether it is a variable's value."""
        return self.fact.kind == FactKind.VARIABLE


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
    """The rows, and the row of each object. No code of these objects is run."""

    def __init__(self, heap: Heap) -> None:
        self.rows: list[CensusRow] = []
        self.row_numbers: dict[int, int] = {}
        """Row of a tensor or variable by ``id()``; that of a variable is its value's."""
        self.unread = 0
        facts = read_tensors(heap.tensors)
        owners = self._owners(heap)
        row_of_fact: dict[int, int] = {}
        for number, fact in enumerate(facts):
            tensor = heap.tensors[fact.tensor_index]
            if fact.kind == FactKind.UNREAD and not fact.nbytes:
                self.unread += 1
                continue
            row_of_fact[number] = len(self.rows)
            self._add(fact, tensor, owners.get(id(tensor), 0))
        self.handles = [
            (row_of_fact[row.fact.handle_fact], value)
            for value, row in enumerate(self.rows)
            if row.fact.handle_fact in row_of_fact
        ]
        """Pairs of rows: a handle, its variable's value."""
        for variable in heap.variables:
            self._alias(variable, content_of(variable).get("_handle"))
        for variable in heap.keras_variables:
            self._alias(variable, content_of(variable).get("_value"))

    def _owners(self, heap: Heap) -> dict[int, int]:
        """Return ``id()`` of the outermost variable by ``id()`` of its handle."""
        outer = {id(content_of(each).get("_value")): id(each) for each in heap.keras_variables}
        return {
            id(content_of(each).get("_handle")): outer.get(id(each), id(each))
            for each in heap.variables
        }

    def _add(self, fact: Fact, tensor: Any, owner: int) -> None:
        self.row_numbers[id(tensor)] = len(self.rows)
        is_value = fact.kind == FactKind.VARIABLE
        device = torch_device_name(tensor.device if is_value else tensor.backing_device)
        self.rows.append(CensusRow(fact, device, owner if is_value else owner or id(tensor)))

    def _alias(self, variable: Any, inner: Any) -> None:
        row = self.row_numbers.get(id(inner))
        if row is not None:
            self.row_numbers[id(variable)] = row

    def name_variable(self, item: Any, node: int, role: Role) -> None:
        """Name a variable unless it has a name."""
        row = self.row(item)
        if row is not None and row.name < 0:
            row.name, row.role = node, role

    def row(self, item: Any) -> CensusRow | None:
        """Return the row of a tensor or variable."""
        number = self.row_numbers.get(id(item))
        return None if number is None else self.rows[number]


def tabulate(
    rows: Sequence[CensusRow], names: Names, allocator: NativeAllocator | None
) -> TensorTable:
    """Return the table of all rows; each buffer is counted in one of them."""
    table = TensorTable()
    table.names = names
    for row in rows:
        _append(table, row)
    table.alias = array("i", [-1]) * len(table)
    add_births(table, allocator)
    name_the_rest(table)
    first: dict[tuple[int, int], int] = {}
    firsts = array("i")
    for number, row in enumerate(rows):
        address = row.fact.address
        key = (table.device[number], address) if address else (-1, number)
        firsts.append(first.setdefault(key, number))
    choose_counted(table, firsts)
    return table


def _append(table: TensorTable, row: CensusRow) -> None:
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


def find_objects() -> Heap:
    """Return TensorFlow's and Keras's objects in the heap."""
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
    """Return the ``__dict__`` of all objects whose attributes are read."""
    variables = (*heap.variables, *heap.keras_variables)
    found = map(dict_of, (*variables, *heap.layers, *heap.optimizers, *heap.datasets))
    return [content for content in found if content is not None]
