"""Tensors found by a census, on their way into a table of records.

Buffers are counted once, births looked up, the nameless told.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tensorlens.frameworks.census.table import (
    Births,
    add_births,
    choose_counted,
    name_the_rest,
)
from tensorlens.records.names import Names
from tensorlens.records.tensors import TensorTable
from tensorlens.roles import ROLES

_ROLES = {role: number for number, role in enumerate(ROLES)}


class Read(Protocol):
    """What was read of a tensor. Sizes are bytes."""

    @property
    def dtype(self) -> str:
        """Without the framework's name."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements by dimension."""

    @property
    def nbytes(self) -> int:
        """What the tensor shows."""

    @property
    def address(self) -> int:
        """Of the buffer's first byte; 0 where there is none or it is not known."""

    @property
    def buffer_nbytes(self) -> int:
        """The whole buffer."""

    @property
    def offset(self) -> int:
        """Where the tensor begins in the buffer."""


_Read = TypeVar("_Read", bound=Read)


@dataclass(slots=True)
class FoundRow(Generic[_Read]):
    """One tensor, or a part of one, and what is learned of it while a census goes on."""

    fact: _Read
    device: str
    owner: int
    """``id()`` of what holders refer to it by: a variable in place of its value; 0 for parts."""
    name: int = -1
    role: str = "other"
    module: str | None = None
    held_by: str | None = None
    note: str | None = None


def tabulate(rows: Sequence[FoundRow[Any]], names: Names, births: Births) -> TensorTable:
    """Return the table of everything found; each buffer is counted in one row."""
    table = TensorTable()
    table.names = names
    for row in rows:
        _append(table, row)
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


def _append(table: TensorTable, row: FoundRow[Any]) -> None:
    fact = row.fact
    table.nbytes.append(fact.nbytes)
    table.storage.append(fact.address)
    table.storage_nbytes.append(fact.buffer_nbytes)
    table.offset.append(_elements(fact))
    table.role.append(_ROLES[row.role])
    table.device.append(_number(table.devices, row.device))
    table.dtype.append(_number(table.dtypes, fact.dtype))
    table.shape.append(_number(table.shapes, fact.shape))
    table.stride.append(-1)
    table.name.append(row.name)
    table.module.append(-1 if row.module is None else table.names.text(row.module))
    table.held_by.append(-1 if row.held_by is None else _number(table.holders, row.held_by))
    table.note.append(-1 if row.note is None else _number(table.notes, row.note))


def _elements(fact: Read) -> int:
    count = 1
    for length in fact.shape:
        count *= length
    size = fact.nbytes // count if count else 0
    return fact.offset // size if size else 0


def _number(items: list[Any], item: Any) -> int:
    # shapes and types are few
    try:
        return items.index(item)
    except ValueError:
        items.append(item)
        return len(items) - 1
