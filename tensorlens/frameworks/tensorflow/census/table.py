"""Rows into a table of records: buffers counted once, births looked up, the nameless told."""

from __future__ import annotations

from array import array
from typing import Any

from tensorlens.frameworks.census_table import (
    Births,
    add_births,
    choose_counted,
    name_the_rest,
)
from tensorlens.frameworks.tensorflow.census.rows import Row, Rows
from tensorlens.records.names import Names
from tensorlens.records.tensors import ROLES, TensorTable

_ROLES = {role: number for number, role in enumerate(ROLES)}


def tabulate(rows: Rows, names: Names, births: Births) -> TensorTable:
    """Return the table of everything found; each buffer is counted in one row."""
    table = TensorTable()
    table.names = names
    for row in rows.all:
        _append(table, row)
    table.alias = array("i", [-1]) * len(table)
    add_births(table, births)
    name_the_rest(table)
    first: dict[tuple[int, int], int] = {}
    places = array("i")
    for number, row in enumerate(rows.all):
        address = row.fact.address
        key = (table.device[number], address) if address else (-1, number)
        places.append(first.setdefault(key, number))
    choose_counted(table, places)
    return table


def _append(table: TensorTable, row: Row) -> None:
    fact = row.fact
    table.nbytes.append(fact.nbytes)
    table.storage.append(fact.address)
    table.storage_nbytes.append(fact.buffer_nbytes)
    table.offset.append(_elements(row))
    table.role.append(_ROLES[row.role])
    table.device.append(_number(table.devices, row.device))
    table.dtype.append(_number(table.dtypes, fact.dtype))
    table.shape.append(_number(table.shapes, fact.shape))
    table.stride.append(-1)
    table.name.append(row.name)
    table.module.append(-1 if row.module is None else table.names.text(row.module))
    table.held_by.append(-1 if row.held_by is None else _number(table.holders, row.held_by))
    table.note.append(-1 if row.note is None else _number(table.notes, row.note))


def _elements(row: Row) -> int:
    count = 1
    for length in row.fact.shape:
        count *= length
    size = row.fact.nbytes // count if count else 0
    return row.fact.offset // size if size else 0


def _number(items: list[Any], item: Any) -> int:
    # shapes and types are few
    try:
        return items.index(item)
    except ValueError:
        items.append(item)
        return len(items) - 1
