"""Rows into a table of records: storages counted once, births looked up, the nameless told."""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator, Sequence

from tensorlens.frameworks.heap import no_locals
from tensorlens.frameworks.native.allocator import NativeAllocator
from tensorlens.frameworks.torch.census.find import Found
from tensorlens.frameworks.torch.census.named_rows import NamedRows
from tensorlens.records.tensors import SourceLine, TensorTable

_PLAIN = ("nbytes", "storage", "storage_nbytes", "offset", "device", "dtype", "shape", "stride")


class Births:
    """Which line allocated a storage, as far as the native counter watched."""

    def __init__(self, allocator: NativeAllocator | None) -> None:
        self._allocator = allocator

    def numbers(self, storages: array[int]) -> array[int]:
        """Return the number of the line that allocated each, -1 where it is not known."""
        if self._allocator is None:
            return array("i", [-1]) * len(storages)
        return self._allocator.births(storages)

    def line(self, number: int) -> SourceLine:
        """Return a line by its number."""
        assert self._allocator is not None
        return SourceLine(*self._allocator.birth_line(number))


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
    _add_births(table, births)
    _add_sparse(table, rows, named)
    plain = isinstance(rows, range)
    if not plain:
        _name_the_rest(table)
    if scan.shares:
        _choose_counted(table, _picked(scan.first, rows))
    return table


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


def _add_births(table: TensorTable, births: Births) -> None:
    numbers = births.numbers(table.storage)
    if numbers == array("i", [-1]) * len(numbers):
        table.born = numbers
        return
    lines: dict[int, int] = {-1: -1}
    for number in set(numbers) - {-1}:
        lines[number] = len(table.lines)
        table.lines.append(births.line(number))
    table.born = array("i", map(lines.__getitem__, numbers))


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


def _name_the_rest(table: TensorTable) -> None:
    """Name what nothing holds that Python can see by the line that made it, if that is known."""
    if not table.name or min(table.name) >= 0:
        return
    native = -1
    made: dict[int, int] = {}
    for row, node in enumerate(table.name):
        if node >= 0:
            continue
        line = table.born[row]
        if line >= 0 and line not in made:
            made[line] = table.names.text(f"made at {table.lines[line]}")
        elif line < 0 and native < 0:
            variable = "held by a variable that cannot be read here"
            native = table.names.text(variable if no_locals() else "held by NumPy or native code")
        table.name[row] = made[line] if line >= 0 else native


def _choose_counted(table: TensorTable, first: array[int]) -> None:
    """Let one row of each shared storage be counted, and the others point to it."""
    groups: dict[int, list[int]] = {}
    for row, storage in enumerate(first):
        groups.setdefault(storage, []).append(row)
    for rows in groups.values():
        if len(rows) > 1:
            # the role comes first, then the tensor that shows all of the storage
            counted = min(
                rows,
                key=lambda row: (
                    table.role[row],
                    table.nbytes[row] < table.storage_nbytes[row],
                    row,
                ),
            )
            for row in rows:
                table.alias[row] = -1 if row == counted else counted
