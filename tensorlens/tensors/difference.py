"""The difference of two snapshots, by name."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from tensorlens.records.documents import Document
from tensorlens.records.ledger import FIGURES, Ledger
from tensorlens.records.row_sequence import RowSequence
from tensorlens.records.run import Run, current_run, run_over
from tensorlens.records.tensors import TensorRecord, TensorTable, table_rows
from tensorlens.roles import ROLES, Role
from tensorlens.tensors.snapshot import Snapshot

_KINDS = ("appeared", "gone", "grown")


@dataclass(frozen=True, slots=True)
class Change:
    """One name whose memory changed."""

    before: TensorRecord | None
    """None if it appeared."""
    after: TensorRecord | None
    """None if it is gone."""

    @property
    def tensor(self) -> TensorRecord:
        """The later record; the earlier one if the tensor is gone."""
        known = self.after or self.before
        assert known is not None
        return known

    @property
    def nbytes(self) -> int:
        """Change of its storage's bytes."""
        before = self.before.storage_nbytes if self.before else 0
        after = self.after.storage_nbytes if self.after else 0
        return after - before


class Changes(RowSequence[Change]):
    """A sequence of :class:`Change`, as columns: rows of two tables, -1 for none."""

    __slots__ = ("after", "after_rows", "before", "before_rows")

    def __init__(
        self,
        before: TensorTable,
        before_rows: Sequence[int],
        after: TensorTable,
        after_rows: Sequence[int],
    ) -> None:
        self.before = before
        self.before_rows = array("q", before_rows)
        self.after = after
        self.after_rows = array("q", after_rows)

    def __len__(self) -> int:
        return len(self.after_rows)

    def record(self, row: int) -> Change:
        """Return one change, without checking ``row``."""
        before, after = self.before_rows[row], self.after_rows[row]
        return Change(
            None if before < 0 else self.before.record(before),
            None if after < 0 else self.after.record(after),
        )

    def __repr__(self) -> str:
        return f"<{len(self)} changes>"

    def sizes(self) -> list[tuple[int, int]]:
        """Return each change's bytes of storage before and after."""
        before, after = self.before.storage_nbytes, self.after.storage_nbytes
        return [
            (0 if b < 0 else before[b], 0 if a < 0 else after[a])
            for b, a in zip(self.before_rows, self.after_rows, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class RoleChange:
    """All storage of one role on one device, in bytes."""

    device: str
    role: Role
    before: int
    after: int

    @property
    def change(self) -> int:
        """Change in bytes."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class LedgerChange:
    """A device's ledgers before and after; None if a snapshot has none."""

    before: Ledger | None
    after: Ledger | None

    def change(self, figure: str) -> int | None:
        """Return the change of a figure of the ledger in bytes; None if unknown.

        Raises:
            AttributeError: ``figure`` is none of :data:`~tensorlens.records.ledger.FIGURES`.
        """
        before = getattr(self.before, figure) if self.before else None
        after = getattr(self.after, figure) if self.after else None
        return None if before is None or after is None else after - before


@dataclass(frozen=True, slots=True)
class Difference(Document):
    """Difference of two snapshots: tensors that appeared, went and grew.

    Each storage is counted once, at the tensor that stands for it: a new view of old memory is no
    growth. Prints itself as text and, in a notebook, as HTML. As a table: one row per change.
    """

    SCHEMA: ClassVar[str] = "tensorlens.difference"
    VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = "difference"
    PRESENTER: ClassVar[str] = "tensorlens.tensors.present.difference"
    INDENT: ClassVar[int | None] = None

    appeared: Changes
    gone: Changes
    grown: Changes
    """Same name, storage of another size: larger or smaller."""
    roles: tuple[RoleChange, ...]
    """Roles with storage before or after, of every device."""
    ledger: Mapping[str, LedgerChange]
    """Device name to its ledgers before and after."""
    process: str | None = None
    notes: tuple[str, ...] = ()
    """Notes of both snapshots."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    def kinds(self) -> tuple[tuple[str, Changes], ...]:
        """Return the kinds of changes with their changes."""
        return tuple((kind, getattr(self, kind)) for kind in _KINDS)

    def change(self, device: str) -> dict[str, int | None]:
        """Return the change of each figure of a device's ledger in bytes; None if unknown.

        Raises:
            KeyError: neither snapshot has a ledger of that device.
        """
        return {figure: self.ledger[device].change(figure) for figure in FIGURES}

    def _fields(self) -> dict[str, Any]:
        kinds = self.kinds()
        before = [row for _, changes in kinds for row in changes.before_rows if row >= 0]
        after = [row for _, changes in kinds for row in changes.after_rows if row >= 0]
        return {
            "process": self.process,
            "notes": list(self.notes),
            "run": self.run and asdict(self.run),
            # in the order of the changes, so that no row numbers are needed
            "before": table_rows(self.gone.before, before).to_dict(),
            "after": table_rows(self.gone.after, after).to_dict(),
            **{kind: len(changes) for kind, changes in kinds},
            "roles": [asdict(role) for role in self.roles],
            "ledger": {device: asdict(change) for device, change in self.ledger.items()},
        }

    @classmethod
    def _ready(cls, data: dict[str, Any]) -> dict[str, Any]:
        before = TensorTable.from_dict(data.pop("before"))
        after = TensorTable.from_dict(data.pop("after"))
        appeared, gone, grown = (data[kind] for kind in _KINDS)
        rows = range(gone, gone + grown), range(appeared, appeared + grown)
        return {
            "appeared": Changes(before, [-1] * appeared, after, range(appeared)),
            "gone": Changes(before, range(gone), after, [-1] * gone),
            "grown": Changes(before, rows[0], after, rows[1]),
        }


def difference(before: Snapshot, after: Snapshot) -> Difference:
    """Return what changed from ``before`` to ``after``.

    Tensors match by device and name; if several share both, by role, size and birth line. On each
    device the sizes of all changes add up to the change of the roles' totals.
    """
    old, new = before.tensors, after.tensors
    appeared, gone, grown = _matched(old, new)
    return Difference(
        appeared=Changes(old, [-1] * len(appeared), new, appeared),
        gone=Changes(old, gone, new, [-1] * len(gone)),
        grown=Changes(old, [row for row, _ in grown], new, [row for _, row in grown]),
        roles=_roles(old, new),
        ledger={
            device: LedgerChange(before.ledger.get(device), after.ledger.get(device))
            for device in {**before.ledger, **after.ledger}
        },
        process=after.process,
        notes=_notes(before.notes, after.notes),
        run=run_over((before, after)),
    )


def _roles(before: TensorTable, after: TensorTable) -> tuple[RoleChange, ...]:
    earlier, later = before.role_totals(), after.role_totals()
    devices = dict.fromkeys(device for device, _ in [*earlier, *later])
    return tuple(
        RoleChange(device, role, earlier.get((device, role), 0), later.get((device, role), 0))
        for device in devices
        for role in ROLES
        if (device, role) in earlier or (device, role) in later
    )


def _notes(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    both = [note for note in before if note in after]
    return (
        *both,
        *(f"before: {note}" for note in before if note not in both),
        *(f"after: {note}" for note in after if note not in both),
    )


_Key = tuple[str, str]


def _matched(
    before: TensorTable, after: TensorTable
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Match the rows that stand for storage by device and name, and return those that changed.

    Returns the rows of ``after`` that appeared, the rows of ``before`` that are gone, and pairs
    of rows whose sizes differ.

    Roles need not be equal: a batch is an input as long as autograd holds it, and another role
    after backward. Rows of one name are paired in rounds: those equal in role, size and birth
    line, then those of one birth line, those of one size, and the others, the smallest of each
    side first.
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
            matched, left, more = _paired(before, rows, after, partners)
            pairs += matched
            gone += left
            appeared += more
    for rows in later.values():
        appeared += rows
    renamed = _renamed(before, gone, after, appeared)
    sizes_before, sizes_after = before.storage_nbytes, after.storage_nbytes
    return (
        sorted(set(appeared) - {row for _, row in renamed}),
        sorted(set(gone) - {row for row, _ in renamed}),
        sorted((b, a) for b, a in pairs if sizes_before[b] != sizes_after[a]),
    )


def _by_name(table: TensorTable) -> dict[_Key, list[int]]:
    found: dict[_Key, list[int]] = defaultdict(list)
    for row in table.counted():
        found[table.devices[table.device[row]], table.names[table.name[row]]].append(row)
    return found


def _paired(
    before: TensorTable, rows: list[int], after: TensorTable, partners: list[int]
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Return the pairs, and the rows of each side without a partner."""
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
    """Return pairs that are one storage, for which another of its names stands now.

    An equal address is not enough, as allocators reuse addresses: they must share a name.
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
