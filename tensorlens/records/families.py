"""Tensors that differ only in their place in one container, told together.

``history[0]`` to ``history[9999]``, equal in everything that a reader sees, are one family:
``history[0..9999]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tensorlens.records.tensors import TensorTable

_MOST_RANGES = 3
_ALIKE = (
    *("role", "device", "dtype", "shape", "nbytes", "storage_nbytes"),
    *("born", "held_by", "note", "module"),
)


def families(
    table: TensorTable, rows: Iterable[int], apart: Mapping[int, object] | None = None
) -> list[list[int]]:
    """Return the rows in families, in the order of each one's first row.

    Args:
        table: what the rows are of.
        rows: those to tell together.
        apart: row to a value that must be equal too.
    """
    names = table.names
    columns = [getattr(table, column) for column in _ALIKE]
    parents: dict[int, str] = {}
    found: list[list[int]] = []
    known: dict[tuple[object, ...], list[int]] = {}
    for row in rows:
        place = None if row in table.more_names else names.family(table.name[row])
        if place is None:
            found.append([row])
            continue
        parent = place[0]
        if parent not in parents:
            parents[parent] = names[parent]
        key = (
            parents[parent],
            apart[row] if apart else None,
            *[column[row] for column in columns],
        )
        family = known.get(key)
        if family is None:
            family = known[key] = []
            found.append(family)
        family.append(row)
    return found


def family_name(table: TensorTable, family: Sequence[int]) -> str:
    """Return the name of one tensor, or of several with their indices as ranges."""
    if len(family) == 1:
        return table.names[table.name[family[0]]]
    places = [table.names.family(table.name[row]) for row in family]
    indices = sorted({place[1] for place in places if place is not None})
    parent = places[0][0] if places[0] is not None else -1
    return f"{table.names[parent]}[{_ranges(indices)}]"


def _ranges(indices: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        elif len(runs) == _MOST_RANGES:
            runs.append([])
            break
        else:
            runs.append([index, index])
    return ", ".join(_range(run) for run in runs)


def _range(run: Sequence[int]) -> str:
    if not run:
        return "..."
    first, last = run
    return str(first) if first == last else f"{first}..{last}"
