"""Tensors that differ only in their place in containers, or in nothing, told together.

``history[0]`` to ``history[9999]``, equal in everything that a reader sees, are one family:
``history[0..9999]``. So are ``buffer[0].state`` to ``buffer[2999].state``: ``buffer[*].state``,
and the same tensor of each layer of a model: ``layers[0-11].mlp.weight``.
Some small things that come with every variable are told together whatever they are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tensorlens.records.names import BLANK, INDEX, KEY, Names, common_name, without_indices
from tensorlens.records.tensors import TensorTable

HANDLE = "what operations know the variable by"
"""The note of what refers to a variable, and takes a few bytes besides its value."""

KEPT = "what the graph of a function keeps from call to call"
"""The note of constants, of which a graph has many that are small."""

AHEAD = "made for a dataset, which holds it ahead or in its cache"
"""The note of elements of input pipelines, which may be numbers."""

HANDLES = "handles of variables"
"""Their common name."""

HANDLE_OF_DATA = "what tf.data knows a dataset or an iterator by"
"""The note of the small tensors that each dataset of an input pipeline comes with."""

HANDLES_OF_DATA = "handles of datasets and iterators"
"""Their common name."""

TOGETHER = {HANDLE: HANDLES, HANDLE_OF_DATA: HANDLES_OF_DATA}
"""Note to what all that has it is called together."""
_SMALL = 1024
"""Bytes of the largest constant or element that is not told by itself."""
_MOST_RANGES = 3
_FEW = 8
"""So many keys of a dict are rather fields with a meaning each than items of one kind."""
_ALIKE = (
    "role",
    "device",
    "dtype",
    "shape",
    "nbytes",
    "storage_nbytes",
    "born",
    "model_line",
    "note",
)


@dataclass(frozen=True, slots=True)
class Family:
    """One tensor, or several that a reader need not tell apart."""

    name: str
    """Last indices and numbers of layers as ranges, other indices and keys blanked."""
    rows: tuple[int, ...]


def families(
    table: TensorTable, rows: Iterable[int], apart: Mapping[int, object] | None = None
) -> list[Family]:
    """Return the rows in families, in the order of each one's first row.

    A family's names are equal, or differ in their last index, or, where it has more than eight
    members, in any indices and keys. Families like these are one where their names, and those of
    their modules and holders, differ only in numbers that are parts of a path, as those of layers
    are. Handles of variables are one family, those of datasets another, and so are the small
    constants of one graph and the small elements of datasets.

    Args:
        table: what the rows are of.
        rows: those to tell together.
        apart: row to a value that must be equal too.
    """
    names = table.names
    columns = [getattr(table, column) for column in _ALIKE]
    together = _Together(table)
    memo: dict[int, str] = {}
    order: dict[int, int] = {}
    known: dict[tuple[object, ...], list[int]] = {}
    for row in rows:
        order[row] = len(order)
        title = together.title(row)
        if title is not None:
            like = title, table.role[row], table.device[row], apart[row] if apart else None
            known.setdefault(like, []).append(row)
            continue
        key = (
            # one of several names says all of them: it is no part of a family
            row if row in table.more_names else names.pattern(table.name[row], memo),
            apart[row] if apart else None,
            *[column[row] for column in (*columns, table.held_by, table.module)],
        )
        group = known.get(key)
        if group is None:
            known[key] = [row]
        else:
            group.append(row)
    found = [
        family
        for group in known.values()
        for family in ([group] if together.title(group[0]) else _parted(table, group))
    ]
    named = [
        Family(_name(table, rows), tuple(rows))
        for rows in sorted(found, key=lambda rows: order[rows[0]])
    ]
    layers: dict[tuple[object, ...], list[Family]] = {}
    for family in named:
        row = family.rows[0]
        if row in table.more_names or together.title(row) is not None:
            layers[(row,)] = [family]
            continue
        key = (
            without_indices(family.name, indices=False),
            without_indices(_text(table.holders, table.held_by[row])),
            without_indices(_text(table.names, table.module[row])),
            apart[row] if apart else None,
            *[column[row] for column in columns],
        )
        layers.setdefault(key, []).append(family)
    return [
        Family(
            common_name([family.name for family in alike]),
            tuple(row for family in alike for row in family.rows),
        )
        for alike in layers.values()
    ]


def holder(table: TensorTable, family: Family) -> str | None:
    """Return what holds the tensors of a family besides what its name says."""
    held = [table.holders[number] for row in family.rows if (number := table.held_by[row]) >= 0]
    return common_name(held) if held else None


def module(table: TensorTable, family: Family) -> str | None:
    """Return the module of a family, or those of its layers: ``layers[0-11].mlp``."""
    made = [table.names[number] for row in family.rows if (number := table.module[row]) >= 0]
    return common_name(made) if made else None


def _text(texts: Sequence[str] | Names, number: int) -> str:
    return "" if number < 0 else texts[number]


def _name(table: TensorTable, family: Sequence[int]) -> str:
    """Return the name of one tensor, or of several: last indices as ranges, others blanked.

    What all of them have in common is written: ``rows[*]['x']``.
    """
    names = table.names
    if len(family) == 1:
        return names[table.name[family[0]]]
    title = _Together(table).title(family[0])
    if title is not None:
        return title
    nodes = [table.name[row] for row in family]
    kinds, first = names.steps(nodes[0])
    ways = [names.steps(node)[1] for node in nodes]
    if any(len(way) != len(first) for way in ways):
        # one text, put together in several ways
        return names.pattern(nodes[0], {})
    varied = [
        kind in (INDEX, KEY) and any(way[step] != text for way in ways)
        for step, (kind, text) in enumerate(zip(kinds, first, strict=True))
    ]
    parts = [BLANK if varies else text for varies, text in zip(varied, first, strict=True)]
    if varied and varied[-1] and not any(varied[:-1]):
        indices = [place[1] for place in map(names.family, nodes) if place is not None]
        if len(indices) == len(nodes):
            parts[-1] = f"[{_ranges(sorted(set(indices)))}]"
    return "".join(parts).removeprefix(".")


class _Together:
    """Tells which tensors are told together whatever their births, by their notes."""

    def __init__(self, table: TensorTable) -> None:
        self._table = table
        notes = {note: number for number, note in enumerate(table.notes)}
        self._handles = {notes[note]: title for note, title in TOGETHER.items() if note in notes}
        self._small = {notes[note] for note in (AHEAD, KEPT) if note in notes}

    def title(self, row: int) -> str | None:
        """Return what the family of a row is called; None where it has no family by its note."""
        note = self._table.note[row]
        if note in self._handles:
            return self._handles[note]
        if note in self._small and self._table.storage_nbytes[row] <= _SMALL:
            names = self._table.names
            return names[names.root(self._table.name[row])]
        return None


def _parted(table: TensorTable, group: list[int]) -> list[list[int]]:
    """Return the families of rows whose names are equal but for indices and keys."""
    if len(group) == 1 or len(group) > _FEW:
        return [group]
    names = table.names
    kinds, _ = names.steps(table.name[group[0]])
    if KEY not in kinds and INDEX not in kinds[:-1]:
        return [group]
    found = []
    for beside in _grouped(group, [_without_last_index(table, row) for row in group]):
        # with gaps, as the first and third of each of some tuples, they are no list
        if _is_run(table, beside):
            found.append(beside)
        else:
            found += _grouped(beside, [names[table.name[row]] for row in beside])
    return found


def _grouped(rows: Sequence[int], keys: Sequence[object]) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for row, key in zip(rows, keys, strict=True):
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _without_last_index(table: TensorTable, row: int) -> tuple[str, bool]:
    node = table.name[row]
    place = table.names.family(node)
    return (table.names[node], False) if place is None else (table.names[place[0]], True)


def _is_run(table: TensorTable, rows: Sequence[int]) -> bool:
    """Tell whether names that differ in their last index at most leave none of these out."""
    places = [table.names.family(table.name[row]) for row in rows]
    indices = {place[1] for place in places if place is not None}
    return not indices or max(indices) - min(indices) < len(indices)


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
