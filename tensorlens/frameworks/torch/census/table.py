"""Rows into a table of records: storages counted once, births looked up, the nameless told."""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator, Sequence

from tensorlens.frameworks.census.table import (
    Births,
    add_births,
    choose_counted,
    name_the_rest,
)
from tensorlens.frameworks.torch.census.find import Found
from tensorlens.frameworks.torch.census.named_rows import NamedRows
from tensorlens.records.events import LAYERS
from tensorlens.records.tensors import TensorTable
from tensorlens.roles import ROLES

_ACTIVATION, _INPUT = ROLES.index("activation"), ROLES.index("input")
_PLAIN = ("nbytes", "storage", "storage_nbytes", "offset", "device", "dtype", "shape", "stride")


def tabulate(found: Found, named: NamedRows, births: Births) -> TensorTable:
    """Return the table of everything found; each storage is counted in one row."""
    table = TensorTable()
    scan = found.scan
    rows = _kept(found, named)
    for column in _PLAIN:
        # of all rows the columns themselves: the scan is over
        setattr(table, column, _picked(getattr(scan, column), rows))
    table.role, table.name = _picked(named.role, rows), _picked(named.node, rows)
    table.names = named.names
    # there is one: torch's own spelling of it has no number
    table.devices = ["mps" if device == "mps:0" else device for device in scan.devices]
    table.dtypes = list(scan.dtypes)
    table.shapes = list(scan.shapes)
    for index, row in _places_of(found.blocks, rows):
        table.storage[index], table.storage_nbytes[index] = found.blocks[row]
        table.nbytes[index] = found.blocks[row][1]
    add_births(table, births)
    _tell_inputs(table)
    _add_sparse(table, rows, named)
    plain = isinstance(rows, range)
    if not plain:
        name_the_rest(table)
    if scan.shares:
        choose_counted(table, _picked(scan.first, rows))
    return table


def _tell_inputs(table: TensorTable) -> None:
    """Make inputs of autograd's nodes activations that a layer made: they are no one's input."""
    for row, role in enumerate(table.role):
        if role != _INPUT:
            continue
        born, model = table.born[row], table.model_line[row]
        is_made = born >= 0 and table.lines[born].function.rpartition(".")[2] in LAYERS
        if is_made or model >= 0:
            table.role[row] = _ACTIVATION


def _kept(found: Found, named: NamedRows) -> Sequence[int]:
    """Return the rows that stand for a tensor of someone's, or a storage of autograd's own.

    A range: all of them, and all have a name.
    """
    node, seen = named.node, found.in_python
    if len(node) == seen and not found.parts and (not node or min(node) >= 0):
        return range(seen)
    first, storage = found.scan.first, found.scan.storage
    whole = {row for row, parts in found.parts.items() if parts and storage[row] == 0}
    standing = named.standing()
    python: list[int] = []
    autograd: list[int] = []
    for row, name in enumerate(node):
        if row in whole:
            continue
        if name < 0:
            # an object that only C++ holds tells nothing new of a storage that has a name
            if row >= seen or first[row] in standing:
                continue
            standing.add(first[row])
        (autograd if row in named.of_graph else python).append(row)
    # Python's objects of what autograd holds come and go, and with them the order of the heap
    return python + sorted(autograd, key=storage.__getitem__)


def _picked(values: array[int], rows: Sequence[int]) -> array[int]:
    if isinstance(rows, range):
        return values
    return array(values.typecode, map(values.__getitem__, rows))


def _places_of(wanted: Container[int], rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Give ``(index in the table, row of the scan)`` of the rows that are wanted."""
    if wanted:
        yield from ((index, row) for index, row in enumerate(rows) if row in wanted)


def _add_sparse(table: TensorTable, rows: Sequence[int], named: NamedRows) -> None:
    """Fill the columns that most rows have nothing in."""
    for name in ("module", "held_by", "note", "alias"):
        setattr(table, name, array("i", [-1]) * len(rows))
    for index, row in _places_of(named.module, rows):
        table.module[index] = named.module[row]
    for index, row in _places_of(named.more, rows):
        nodes = named.more[row]
        table.more_names[index] = tuple(dict.fromkeys(table.names[node] for node in nodes))
    for texts, numbers, column in (
        (named.held_by, table.holders, table.held_by),
        (named.notes, table.notes, table.note),
    ):
        known: dict[str, int] = {}
        for index, row in _places_of(texts, rows):
            column[index] = known.setdefault(texts[row], len(known))
        numbers.extend(known)
