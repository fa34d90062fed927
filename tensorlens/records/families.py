"""Families: tensors that differ only in their place in containers, shown as one row.

``history[0]`` to ``history[9999]``, equal in all that a reader sees, are the family
``history[0..9999]``; ``buffer[0].state`` to ``buffer[2999].state`` are ``buffer[*].state``; the
same tensor of each layer is ``layers[0-11].mlp.weight``. Small tensors that come with every
variable are one family, whatever their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tensorlens.records.names import (
    BLANK,
    INDEX,
    KEY,
    Names,
    common_name,
    number_ranges,
    without_indices,
)
from tensorlens.records.tensors import TensorTable

HANDLE = "what operations know the variable by"
"""Note of a variable's handle, a few bytes beside its value."""

KEPT = "what the graph of a function keeps from call to call"
"""Note of constants, of which a graph has many small ones."""

AHEAD = "made for a dataset, which holds it ahead or in its cache"
"""Note of elements of input pipelines, which may be single numbers."""

HANDLES = "handles of variables"
"""Their common name."""

HANDLE_OF_DATA = "what tf.data knows a dataset or an iterator by"
"""Note of the small tensors of each dataset of an input pipeline."""

HANDLES_OF_DATA = "handles of datasets and iterators"
"""Their common name."""

TOGETHER = {HANDLE: HANDLES, HANDLE_OF_DATA: HANDLES_OF_DATA}
"""Note to the common name of tensors that have it."""
_SMALL = 1024
"""Size in bytes up to which constants and elements are one family."""
_T = TypeVar("_T")
_FEW = 8
"""Up to this many keys of a dict are taken for different fields, not items of one kind."""
_ALIKE = ("role", "device", "dtype", "shape", "nbytes", "storage_nbytes", "note")


@dataclass(frozen=True, slots=True)
class Family:
    """One tensor, or several shown as one."""

    name: str
    """Name with last indices and layers' numbers as ranges, other indices and keys blanked."""
    rows: tuple[int, ...]


def families(
    table: TensorTable, rows: Iterable[int], apart: Mapping[int, object] | None = None
) -> list[Family]:
    """Group rows into families, in the order of their first rows.

    A family's names are equal, or differ in their last index, or, if it has more than eight
    members, in any indices and keys. Items of containers may be from several lines of code, other
    families are from one. These families are joined if their names differ only in numbers that are
    parts of a path, such as those of layers, and their modules and holders only in numbers. Handles
    of variables are one family, those of datasets another, and so are the small constants of one
    graph and the small elements of datasets.

    Args:
        table: the table.
        rows: rows of the table.
        apart: row to a value that must be equal within a family.
    """
    order = {row: index for index, row in enumerate(rows)}
    titles = _titles(table, order)
    columns = [getattr(table, column) for column in _ALIKE]

    def alike(row: int) -> tuple[object, ...]:
        other = apart[row] if apart else None
        if row in titles:
            return titles[row], table.role[row], table.device[row], other
        # a tensor with several names is shown by itself
        name = row if row in table.more_names else table.names.pattern(table.name[row])
        beside = table.held_by[row], table.module[row]
        return name, *beside, _lines(table, row), other, *[column[row] for column in columns]

    def alike_but_for_layers(family: Family) -> tuple[object, ...]:
        row = family.rows[0]
        if row in table.more_names or row in titles:
            return (row,)
        return (
            without_indices(family.name, indices=False),
            without_indices(_text(table.holders, table.held_by[row])),
            without_indices(_text(table.names, table.module[row])),
            *(_lines(table, row), apart[row] if apart else None),
            *[column[row] for column in columns],
        )

    groups = [
        part
        for group in _grouped(order, alike)
        for part in ([group] if group[0] in titles else _parted(table, group))
    ]
    groups.sort(key=lambda group: order[group[0]])
    named = [Family(_name(table, each, titles.get(each[0])), tuple(each)) for each in groups]
    return [
        Family(
            common_name([family.name for family in several]),
            tuple(row for family in several for row in family.rows),
        )
        for several in _grouped(named, alike_but_for_layers)
    ]


def _lines(table: TensorTable, row: int) -> tuple[int, int] | None:
    """Return the lines of a tensor; None for an item of a container, which may be from any."""
    is_item = table.names.kinds[table.name[row]] in (INDEX, KEY)
    return None if is_item else (table.born[row], table.model_line[row])


def _titles(table: TensorTable, rows: Iterable[int]) -> dict[int, str]:
    """Return the common names of rows that are grouped by their notes."""
    handles = {number: TOGETHER.get(note) for number, note in enumerate(table.notes)}
    small = {number for number, note in enumerate(table.notes) if note in (AHEAD, KEPT)}
    titles = {}
    for row in rows:
        note = table.note[row]
        title = handles.get(note)
        if title is None and note in small and table.storage_nbytes[row] <= _SMALL:
            title = table.names[table.names.root(table.name[row])]
        if title is not None:
            titles[row] = title
    return titles


def holder(table: TensorTable, family: Family) -> str | None:
    """Return the holder of a family, if its name does not contain it."""
    return _common(table.holders, [table.held_by[row] for row in family.rows])


def module(table: TensorTable, family: Family) -> str | None:
    """Return the module of a family, or those of its layers: ``layers[0-11].mlp``."""
    return _common(table.names, [table.module[row] for row in family.rows])


def _common(texts: Sequence[str] | Names, numbers: Iterable[int]) -> str | None:
    """Return the common name of texts; the first text if they differ in more than numbers."""
    used = [texts[number] for number in dict.fromkeys(numbers) if number >= 0]
    if len({*map(without_indices, used)}) > 1:
        return used[0]
    return common_name(used) if used else None


def _text(texts: Sequence[str] | Names, number: int) -> str:
    return "" if number < 0 else texts[number]


def _name(table: TensorTable, family: Sequence[int], title: str | None) -> str:
    """Return the name of one tensor, or of several: last indices as ranges, others blanked.

    Indices and keys that are equal in all stay: ``rows[*]['x']``.
    """
    names = table.names
    if len(family) == 1:
        return names[table.name[family[0]]]
    if title is not None:
        return title
    nodes = [table.name[row] for row in family]
    kinds, first = names.steps(nodes[0])
    paths = [names.steps(node)[1] for node in nodes]
    if any(len(path) != len(first) for path in paths):
        # equal texts, made of different nodes
        return names.pattern(nodes[0])
    varied = [
        kind in (INDEX, KEY) and any(path[step] != text for path in paths)
        for step, (kind, text) in enumerate(zip(kinds, first, strict=True))
    ]
    parts = [BLANK if varies else text for varies, text in zip(varied, first, strict=True)]
    if varied and varied[-1] and not any(varied[:-1]):
        indices = [item[1] for item in map(names.family, nodes) if item is not None]
        if len(indices) == len(nodes):
            parts[-1] = f"[{number_ranges(sorted(set(indices)), '..')}]"
    return "".join(parts).removeprefix(".")


def _parted(table: TensorTable, group: list[int]) -> list[list[int]]:
    """Group rows whose names are equal except for indices and keys."""
    if len(group) == 1 or len(group) > _FEW:
        return [group]
    names = table.names
    kinds, _ = names.steps(table.name[group[0]])
    if KEY not in kinds and INDEX not in kinds[:-1]:
        return [group]
    return _grouped(group, lambda row: _without_last_index(table, row))


def _grouped(items: Iterable[_T], key: Callable[[_T], object]) -> list[list[_T]]:
    groups: dict[object, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _without_last_index(table: TensorTable, row: int) -> tuple[str, bool]:
    node = table.name[row]
    item = table.names.family(node)
    return (table.names[node], False) if item is None else (table.names[item[0]], True)
