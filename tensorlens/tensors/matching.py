"""Matches the tensors of two snapshots by name, on columns."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

from tensorlens.records.tensors import TensorTable

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Matches:
    """Rows of two tables that stand for storage; those that match with equal size are left out."""

    appeared: array[int]
    """Rows of the later table."""
    gone: array[int]
    """Rows of the earlier table."""
    grown_before: array[int]
    """Rows of the earlier table, each with its partner in :attr:`grown_after`."""
    grown_after: array[int]


def matches(before: TensorTable, after: TensorTable) -> Matches:
    """Match the rows that stand for storage by device and name.

    A batch that autograd holds is an input, and after backward only a variable's: the role does
    not make it another tensor. Where a name is there several times, those equal in role, size and
    birth line go together first, then those of one birth line, of one size, and the others, the
    smallest of each side first.
    """
    earlier, later = _by_name(before), _by_name(after)
    gone: list[int] = []
    appeared: list[int] = []
    pairs: list[tuple[int, int]] = []
    for key, rows in earlier.items():
        partners = later.pop(key, None)
        if partners is None:
            gone += rows
        elif len(rows) == len(partners) == 1:
            pairs.append((rows[0], partners[0]))
        else:
            found, left, more = _paired(before, rows, after, partners)
            pairs += found
            gone += left
            appeared += more
    for rows in later.values():
        appeared += rows
    renamed = _renamed(before, gone, after, appeared)
    sizes_before, sizes_after = before.storage_nbytes, after.storage_nbytes
    grown = sorted((b, a) for b, a in pairs if sizes_before[b] != sizes_after[a])
    return Matches(
        array("q", sorted(set(appeared) - {row for _, row in renamed})),
        array("q", sorted(set(gone) - {row for row, _ in renamed})),
        array("q", [row for row, _ in grown]),
        array("q", [row for _, row in grown]),
    )


def _by_name(table: TensorTable) -> dict[_Key, list[int]]:
    names, devices, nodes = table.names, table.device, table.name
    found: dict[_Key, list[int]] = defaultdict(list)
    parents: dict[int, str] = {}
    for row in table.counted():
        node = nodes[row]
        place = names.family(node)
        if place is None:
            name = names[node]
        else:
            parent, index = place
            if parent not in parents:
                parents[parent] = names[parent]
            name = f"{parents[parent]}[{index}]"
        found[table.devices[devices[row]], name].append(row)
    return found


def _paired(
    before: TensorTable, rows: list[int], after: TensorTable, partners: list[int]
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Return the pairs, and the rows of each side that have no partner."""
    pairs: list[tuple[int, int]] = []

    def line(table: TensorTable, row: int) -> Hashable:
        born = table.born[row] if table.model_line[row] < 0 else table.model_line[row]
        return None if born < 0 else table.lines[born]

    def size(table: TensorTable, row: int) -> Hashable:
        return table.storage_nbytes[row]

    def exact(table: TensorTable, row: int) -> Hashable:
        return line(table, row), size(table, row), table.role[row]

    for alike in (exact, line, size, lambda table, row: None):
        groups, others = _grouped(before, rows, alike), _grouped(after, partners, alike)
        for key in groups.keys() & others.keys():
            pairs += zip(groups[key], others[key], strict=False)
        rows = sorted(set(rows) - {row for row, _ in pairs}, key=before.storage_nbytes.__getitem__)
        partners = sorted(
            set(partners) - {row for _, row in pairs}, key=after.storage_nbytes.__getitem__
        )
        if not rows or not partners:
            break
    return pairs, rows, partners


def _grouped(
    table: TensorTable, rows: Iterable[int], alike: Callable[[TensorTable, int], Hashable]
) -> Mapping[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        groups[alike(table, row)].append(row)
    return groups


def _renamed(
    before: TensorTable, gone: Iterable[int], after: TensorTable, appeared: Iterable[int]
) -> list[tuple[int, int]]:
    """Return pairs that are one storage, which another of its names stands for now.

    An address alone proves nothing, for allocators hand it out again: a name in common does.
    """
    appeared_at = {_place(after, row): row for row in appeared if after.storage[row]}
    pairs = {
        row: appeared_at[place]
        for row in gone
        if before.storage[row] and (place := _place(before, row)) in appeared_at
    }
    if not pairs:
        return []
    earlier = _names_at(before, pairs)
    later = _names_at(after, pairs.values())
    return [
        (row, partner)
        for row, partner in pairs.items()
        if not earlier[row].isdisjoint(later[partner])
    ]


def _place(table: TensorTable, row: int) -> tuple[str, int, int, int]:
    device = table.devices[table.device[row]]
    return device, table.role[row], table.storage[row], table.storage_nbytes[row]


def _names_at(table: TensorTable, rows: Iterable[int]) -> dict[int, set[str]]:
    """Return all names of each row's storage: its own and those of its aliases."""
    found: dict[int, set[str]] = {row: set() for row in rows}
    for row, owner in enumerate(table.alias):
        known = found.get(row if owner < 0 else owner)
        if known is not None:
            known.add(table.names[table.name[row]])
            known.update(table.more_names.get(row, ()))
    return found
