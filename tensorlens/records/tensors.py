"""Live tensors as records, kept in columns: a few dozen bytes a tensor.

Sizes are exact bytes. Nothing here refers to the tensors themselves.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from tensorlens.records.names import INDEX, Names
from tensorlens.records.row_sequence import InternTable, RowSequence, array_column, columns_of
from tensorlens.roles import ROLES, Role


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of someone's program."""

    filename: str
    lineno: int
    function: str

    def __str__(self) -> str:
        return f"{self.filename}:{self.lineno} in {self.function}"


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """One live tensor, or a part of one that has storage of its own."""

    name: str
    role: Role
    """One of :data:`ROLES`."""
    device: str
    """Device as torch spells it: ``cpu``, ``cuda:0``, ``meta``."""
    dtype: str
    """Dtype without the framework's name: ``float32``."""
    shape: tuple[int, ...]
    nbytes: int
    """Bytes of its elements; the storage may have more or fewer."""
    storage: int
    """Address of the storage, the same for tensors that share it; 0 if none."""
    storage_nbytes: int
    """Bytes of the whole storage."""
    alias_of: str | None
    """Tensor for which the shared storage is counted; None if it is this one."""
    held_by: str | None
    """Its holder, if the name does not contain it."""
    born: SourceLine | None
    """Line that allocated the storage; None if births were not watched."""
    names: tuple[str, ...] = ()
    """All names of a tensor with several (tied weights), including ``name``."""
    module: str | None = None
    """Path of the module that made an activation."""
    stride: tuple[int, ...] | None = None
    """Elements from one index to the next; None for tensors without strides."""
    offset: int = 0
    """Offset in the storage, in elements."""
    note: str | None = None
    """Note for the reader: memory of NumPy, packed by a hook, part of a sparse tensor."""
    model_line: SourceLine | None = None
    """Line of a library's model that allocated it: the innermost one below ``born``."""


@dataclass(eq=False, repr=False)
class TensorTable(RowSequence[TensorRecord]):
    """Tensors in columns; behaves as a sequence of :class:`TensorRecord`.

    A column of numbers declares the field that it numbers; ``alias`` numbers a row.
    """

    COLUMNS: ClassVar[Mapping[str, str]]
    """Column to its type code, as :mod:`array` spells them."""

    nbytes: array[int] = array_column("q")
    storage: array[int] = array_column("Q")
    storage_nbytes: array[int] = array_column("q")
    offset: array[int] = array_column("q")
    role: array[int] = array_column("b")
    device: array[int] = array_column("h", "devices")
    dtype: array[int] = array_column("h", "dtypes")
    shape: array[int] = array_column("i", "shapes")
    stride: array[int] = array_column("i", "shapes")
    name: array[int] = array_column("i", "names")
    alias: array[int] = array_column("i")
    held_by: array[int] = array_column("i", "holders")
    born: array[int] = array_column("i", "lines")
    model_line: array[int] = array_column("i", "lines")
    module: array[int] = array_column("i", "names")
    note: array[int] = array_column("i", "notes")
    names: Names = field(default_factory=Names)
    devices: list[str] = field(default_factory=InternTable)
    dtypes: list[str] = field(default_factory=InternTable)
    shapes: list[tuple[int, ...]] = field(default_factory=InternTable)
    holders: list[str] = field(default_factory=InternTable)
    lines: list[SourceLine] = field(default_factory=InternTable)
    notes: list[str] = field(default_factory=InternTable)
    more_names: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Row to all names, for rows with more than one."""

    def __len__(self) -> int:
        return len(self.nbytes)

    def __repr__(self) -> str:
        return f"<{len(self)} tensors>"

    def record(self, row: int) -> TensorRecord:
        """Return one tensor's record, without checking ``row``."""
        name = self.names[self.name[row]]
        alias = self.alias[row]
        module = self.module[row]
        return TensorRecord(
            name=name,
            role=ROLES[self.role[row]],
            device=self.devices[self.device[row]],
            dtype=self.dtypes[self.dtype[row]],
            shape=self.shapes[self.shape[row]],
            nbytes=self.nbytes[row],
            storage=self.storage[row],
            storage_nbytes=self.storage_nbytes[row],
            alias_of=None if alias < 0 else self.names[self.name[alias]],
            held_by=_item(self.holders, self.held_by[row]),
            born=_item(self.lines, self.born[row]),
            names=self.more_names.get(row, (name,)),
            module=None if module < 0 else self.names[module],
            stride=_item(self.shapes, self.stride[row]),
            offset=self.offset[row],
            note=_item(self.notes, self.note[row]),
            model_line=_item(self.lines, self.model_line[row]),
        )

    def counted(self) -> Iterator[int]:
        """Yield one row for each storage."""
        return (row for row, alias in enumerate(self.alias) if alias < 0)

    def role_totals(self) -> dict[tuple[str, str], int]:
        """Return the bytes of storage of each device and role, each storage once."""
        totals: dict[tuple[str, str], int] = {}
        for row in self.counted():
            key = self.devices[self.device[row]], ROLES[self.role[row]]
            totals[key] = totals.get(key, 0) + self.storage_nbytes[row]
        return totals

    def to_dict(self) -> dict[str, Any]:
        """Return the columns as lists, for JSON."""
        return {
            **{column: list(getattr(self, column)) for column in self.COLUMNS},
            "names": {
                "parents": list(self.names.parents),
                "kinds": list(self.names.kinds),
                "values": list(self.names.values),
                "texts": list(self.names.texts),
            },
            **{each: list(getattr(self, each)) for each in _TEXTS},
            "shapes": [list(shape) for shape in self.shapes],
            "lines": [[line.filename, line.lineno, line.function] for line in self.lines],
            "more_names": {str(row): list(names) for row, names in self.more_names.items()},
        }

    @classmethod
    def from_dict(cls, data: Any) -> TensorTable:
        """Return the table that :meth:`to_dict` gave.

        Raises:
            KeyError, TypeError, ValueError, OverflowError: the data is damaged.
        """
        table = cls()
        for column, code in cls.COLUMNS.items():
            setattr(table, column, array(code, data[column]))
        names = data["names"]
        table.names = Names(
            array("i", names["parents"]),
            array("b", names["kinds"]),
            array("q", names["values"]),
            names["texts"],
        )
        for each in _TEXTS:
            setattr(table, each, list(data[each]))
        table.shapes = [tuple(shape) for shape in data["shapes"]]
        table.lines = [SourceLine(*line) for line in data["lines"]]
        table.more_names = {int(row): tuple(each) for row, each in data["more_names"].items()}
        if any(len(getattr(table, column)) != len(table) for column in cls.COLUMNS):
            raise ValueError("columns of different length")
        if _has_circle(table.names.parents):
            raise ValueError("a name that goes on from itself")
        return table


TensorTable.COLUMNS = columns_of(TensorTable)
_TEXTS = ("devices", "dtypes", "holders", "notes")


def _has_circle(parents: Sequence[int]) -> bool:
    seen_from = [-1] * len(parents)
    for start in range(len(parents)):
        node = start
        while node >= 0 and seen_from[node] < 0:
            seen_from[node] = start
            node = parents[node]
        if node >= 0 and seen_from[node] == start:
            return True
    return False


FIELDS = tuple(field.name for field in fields(TensorRecord))


def _item(items: Sequence[Any], number: int) -> Any:
    return None if number < 0 else items[number]


def table_rows(table: TensorTable, rows: Iterable[int]) -> TensorTable:
    """Return a table of some rows, without the names and lines of the others.

    Rows that are aliases need the row that stands for their storage among ``rows``.
    """
    part = TensorTable()
    _append(part, table, list(rows))
    return part


def merge_tables(parts: Iterable[tuple[str, TensorTable]]) -> TensorTable:
    """Return all rows of several tables, with each part's text put before its device names."""
    whole = TensorTable()
    for prefix, table in parts:
        _append(whole, table, range(len(table)), prefix)
    return whole


def _append(target: TensorTable, table: TensorTable, rows: Sequence[int], prefix: str = "") -> None:
    """Append rows of a table, renumbering what they refer to."""
    new_rows = {-1: -1} | {row: len(target) + index for index, row in enumerate(rows)}
    nodes = {-1: -1}
    for column, of in columns_of(TensorTable, "of").items():
        whole = getattr(table, column)
        numbers = [whole[row] for row in rows]
        if column == "alias":
            numbers = [new_rows[owner] for owner in numbers]
        elif of == "names":
            _copy(table.names, dict.fromkeys(numbers), target.names, nodes)
            numbers = [nodes[node] for node in numbers]
        elif of:
            items, kept = getattr(table, of), getattr(target, of)
            if of == "devices":
                items = [prefix + name for name in items]
            used = (number for number in dict.fromkeys(numbers) if number >= 0)
            moved = {-1: -1} | {number: kept.number(items[number]) for number in used}
            numbers = [moved[number] for number in numbers]
        getattr(target, column).extend(numbers)
    for row, all_names in table.more_names.items():
        if row in new_rows:
            target.more_names[new_rows[row]] = all_names


def _copy(names: Names, used: Iterable[int], into: Names, moved: dict[int, int]) -> None:
    """Copy nodes with their ancestors; add their old numbers, with the new ones, to ``moved``."""
    for node in used:
        chain = []
        while node not in moved:
            chain.append(node)
            node = names.parents[node]
        for each in reversed(chain):
            kind, value = names.kinds[each], names.values[each]
            moved[each] = len(into)
            into.parents.append(moved[names.parents[each]])
            into.kinds.append(kind)
            into.values.append(value if kind == INDEX else into.number(names.texts[value]))
