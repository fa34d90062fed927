"""Tables made of rows of others: those of several snapshots together, or a few rows alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tensorlens.records.names import INDEX, Names
from tensorlens.records.tensors import TensorTable

_LISTS = {
    "dtype": "dtypes",
    "shape": "shapes",
    "stride": "shapes",
    "held_by": "holders",
    "born": "lines",
    "model_line": "lines",
    "note": "notes",
}
_PLAIN = ("nbytes", "storage", "storage_nbytes", "offset", "role")


def table_rows(table: TensorTable, rows: Iterable[int]) -> TensorTable:
    """Return a table of some rows, which keeps no name or line of the others.

    Rows that are aliases need the row that stands for their storage among ``rows``.
    """
    joiner = _Joiner()
    joiner.add(table, list(rows), "")
    return joiner.table


def merge_tables(parts: Iterable[tuple[str, TensorTable]]) -> TensorTable:
    """Return all rows of several tables; each part's text goes before its device names."""
    joiner = _Joiner()
    for prefix, table in parts:
        joiner.add(table, range(len(table)), prefix)
    return joiner.table


class _Joiner:
    def __init__(self) -> None:
        self.table = TensorTable()
        self._numbers: dict[str, dict[Any, int]] = {}

    def add(self, table: TensorTable, rows: Sequence[int], prefix: str) -> None:
        target = self.table
        start = len(target)
        moved = {row: start + place for place, row in enumerate(rows)}
        for column in _PLAIN:
            values = getattr(table, column)
            getattr(target, column).extend([values[row] for row in rows])
        self._list(table.device, rows, [prefix + name for name in table.devices], "devices")
        for column, plural in _LISTS.items():
            into = getattr(target, column)
            self._list(getattr(table, column), rows, getattr(table, plural), plural, into)
        self._names(table, rows)
        owners = (table.alias[row] for row in rows)
        target.alias.extend([-1 if owner < 0 else moved[owner] for owner in owners])
        for row, names in table.more_names.items():
            if row in moved:
                target.more_names[moved[row]] = names

    def _list(
        self,
        column: Sequence[int],
        rows: Sequence[int],
        items: Sequence[Any],
        plural: str,
        into: Any = None,
    ) -> None:
        kept: list[Any] = getattr(self.table, plural)
        numbers = self._numbers.setdefault(plural, {})
        values = [column[row] for row in rows]
        moved = {-1: -1}
        for value in dict.fromkeys(values):
            if value >= 0:
                moved[value] = numbers.setdefault(items[value], len(kept))
                if moved[value] == len(kept):
                    kept.append(items[value])
        (self.table.device if into is None else into).extend([moved[value] for value in values])

    def _names(self, table: TensorTable, rows: Sequence[int]) -> None:
        used = dict.fromkeys(
            [*(table.name[row] for row in rows), *(table.module[row] for row in rows)]
        )
        moved = _copied(table.names, used, self.table.names)
        self.table.name.extend([moved[table.name[row]] for row in rows])
        self.table.module.extend([moved[table.module[row]] for row in rows])


def _copied(names: Names, used: Iterable[int], into: Names) -> dict[int, int]:
    """Copy nodes and all that they go on from; return the old numbers to the new."""
    moved = {-1: -1}
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
    return moved
