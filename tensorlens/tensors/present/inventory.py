"""Tensors of a snapshot or a difference, laid out once for text and HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorlens.records.families import Family, families, holder, module
from tensorlens.records.ledger import Ledger
from tensorlens.records.tensors import TensorRecord, TensorTable
from tensorlens.render.figures import LeftOut, counted, size
from tensorlens.render.shown import SHOW_ALL, View
from tensorlens.roles import ROLES
from tensorlens.tensors.difference import Changes, Difference
from tensorlens.tensors.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor that stands for its storage, or a family of them."""

    name: str
    """Name; a family's has indices as ranges, or ``[*]``."""
    count: int
    first: TensorRecord
    nbytes: int
    """Bytes of the tensors' elements."""
    before: int
    """Bytes of their storages before; 0 in a snapshot."""
    after: int
    """Bytes of their storages now."""
    shape: str = ""
    """``(3, 4)``, for a family ``(3, 4) each``; empty if its shapes differ."""
    aliases: tuple[TensorRecord, ...] = ()
    """Tensors that share the storage, for a single tensor in a verbose view."""
    lines: int = 1
    """Number of lines of code that allocated them; if there are several, ``first.born`` is None."""

    @property
    def change(self) -> int:
        """Change in bytes."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class DeviceInventory:
    """The tensors of one device of a snapshot."""

    device: str
    count: int
    nbytes: int
    """Bytes of all storages."""
    aliases: int
    """Number of tensors that share another's storage."""
    roles: tuple[tuple[str, int, int], ...]
    """Role, number of its tensors, bytes of their storages."""
    rows: tuple[TensorRow, ...]
    hidden: tuple[LeftOut, ...]
    ledger: Ledger | None

    @property
    def is_memory(self) -> bool:
        """Whether tensors there take memory."""
        return is_memory(self.device)


def inventories(snapshot: Snapshot, view: View) -> tuple[DeviceInventory, ...]:
    """Return the devices of a snapshot, those without memory last."""
    table = snapshot.tensors
    rows: dict[str, list[int]] = {device: [] for device in snapshot.ledger}
    for row, number in enumerate(table.device):
        rows.setdefault(table.devices[number], []).append(row)
    devices = [
        _inventory(device, here, snapshot, view)
        for device, here in rows.items()
        if view.shows_device(device)
    ]
    return tuple(sorted(devices, key=lambda each: not each.is_memory))


def left_out(snapshot: Snapshot, view: View) -> tuple[tuple[str, int, int], ...]:
    """Return the devices that a view leaves out: name, number of tensors, bytes of storage."""
    table = snapshot.tensors
    totals = {device: [0, 0] for device in snapshot.ledger if not view.shows_device(device)}
    for row in table.counted() if view.devices else ():
        device = table.devices[table.device[row]]
        if not view.shows_device(device):
            total = totals.setdefault(device, [0, 0])
            total[0] += 1
            total[1] += table.storage_nbytes[row]
    return tuple((device, count, nbytes) for device, (count, nbytes) in totals.items())


def devices_changed(difference: Difference) -> tuple[str, ...]:
    """Return the devices of the ledger, then others that have tensors; ``meta`` last."""
    names = dict.fromkeys([*difference.ledger, *(role.device for role in difference.roles)])
    return tuple(sorted(names, key=lambda name: not is_memory(name)))


def _inventory(device: str, rows: Sequence[int], snapshot: Snapshot, view: View) -> DeviceInventory:
    table = snapshot.tensors
    storages = [row for row in rows if table.alias[row] < 0]
    sizes = {row: (0, table.storage_nbytes[row]) for row in storages}
    roles: dict[int, list[int]] = {}
    for row in storages:
        roles.setdefault(table.role[row], []).append(sizes[row][1])
    shown, hidden = _chosen(families(table, storages), view, table, lambda row: sizes[row][1])
    sharing: dict[int, list[TensorRecord]] = {}
    if view.verbose:
        for row in sorted({*rows}.difference(storages)):
            sharing.setdefault(table.alias[row], []).append(table.record(row))
    return DeviceInventory(
        device=device,
        count=len(storages),
        nbytes=sum(sizes[row][1] for row in storages),
        aliases=len(rows) - len(storages),
        roles=tuple(
            (ROLES[role], len(nbytes), sum(nbytes)) for role, nbytes in sorted(roles.items())
        ),
        rows=tuple(_row(table, family, sizes, sharing.get(family.rows[0], ())) for family in shown),
        hidden=hidden,
        ledger=snapshot.ledger.get(device),
    )


def changed_rows(
    kind: str, changes: Changes, device: str, view: View
) -> tuple[tuple[int, int], tuple[TensorRow, ...], tuple[LeftOut, ...]]:
    """Return the number and bytes of a device's changes of one kind, the rows, and those hidden."""
    table, rows = changes.after, changes.after_rows
    if kind == "gone":
        table, rows = changes.before, changes.before_rows
    sizes = dict(zip(rows, changes.sizes(), strict=True))
    here = [row for row in rows if table.devices[table.device[row]] == device]

    def change(row: int) -> int:
        return sizes[row][1] - sizes[row][0]

    grouped = families(table, here, sizes if kind == "grown" else None)
    shown, hidden = _chosen(grouped, view, table, change)
    totals = len(here), sum(map(change, here))
    return totals, tuple(_row(table, family, sizes) for family in shown), hidden


def _row(
    table: TensorTable,
    family: Family,
    sizes: Mapping[int, tuple[int, int]],
    aliases: Sequence[TensorRecord] = (),
) -> TensorRow:
    """Return the row of a family, with what its tensors share; ``sizes`` are before and after."""
    rows = family.rows
    first = table.record(rows[0])
    shapes = {table.shape[row] for row in rows}
    shape = str(table.shapes[shapes.pop()]) if len(shapes) == 1 else ""
    shape += " each" if shape and len(rows) > 1 else ""
    lines = len({table.born[row] for row in rows})
    if lines > 1:
        first = replace(first, born=None)
    if len({table.model_line[row] for row in rows}) > 1:
        first = replace(first, model_line=None)
    return TensorRow(
        name=family.name,
        count=len(rows),
        first=replace(first, held_by=holder(table, family), module=module(table, family)),
        nbytes=sum(table.nbytes[row] for row in rows),
        before=sum(sizes[row][0] for row in rows),
        after=sum(sizes[row][1] for row in rows),
        shape=shape,
        aliases=tuple(aliases) if len(rows) == 1 else (),
        lines=lines,
    )


def _chosen(
    families_: Iterable[Family], view: View, table: TensorTable, size: Callable[[int], int]
) -> tuple[list[Family], tuple[LeftOut, ...]]:
    """Return the families that a view shows, largest first, and sums of the others."""
    hidden: dict[str, list[int]] = {}

    def hide(why: str, family: Family, nbytes: int) -> None:
        total = hidden.setdefault(why, [0, 0])
        total[0] += len(family.rows)
        total[1] += nbytes

    sized = []
    for family in families_:
        nbytes, first = sum(map(size, family.rows)), family.rows[0]
        if view.roles and ROLES[table.role[first]] not in view.roles:
            hide("of other roles", family, nbytes)
        elif not view.verbose and not any(table.storage_nbytes[row] for row in family.rows):
            hide("without memory, verbose lists them", family, nbytes)
        elif abs(nbytes) < view.min_size:
            hide("smaller than min_size", family, nbytes)
        else:
            order = -abs(nbytes), table.role[first], table.names[table.name[first]]
            sized.append((order, nbytes, family))
    sized.sort(key=lambda each: each[0])
    top = len(sized) if view.top is None else view.top
    for _, nbytes, family in sized[top:]:
        hide(SHOW_ALL, family, nbytes)
    return [family for _, _, family in sized[:top]], tuple(
        LeftOut(count, nbytes, why) for why, (count, nbytes) in hidden.items()
    )


def is_memory(device: str) -> bool:
    """Return whether tensors on a device take memory: those on ``meta`` do not."""
    return device.rpartition("/")[2] != "meta"


def headline(device: DeviceInventory) -> str:
    """Return the bytes in tensors, and how much of the allocated bytes they explain."""
    text = f"{size(device.nbytes)} in {counted(device.count)}" if device.count else "no tensors"
    ledger = device.ledger
    if ledger is None:
        return text
    outside = device.nbytes - ledger.named
    if outside > 0:
        text += f" ({size(outside)} of it not from the allocator)"
    elif size(ledger.named) != size(device.nbytes):
        # allocators round sizes up, to 512 bytes on CUDA devices
        text += f" ({size(ledger.named)} as allocated)"
    if ledger.allocated is None or ledger.unnamed is None:
        return f"{text}, {size(ledger.allocated)} allocated"
    if ledger.unnamed:
        return f"{text}, {size(ledger.allocated)} allocated: {size(ledger.unnamed)} unnamed"
    if not ledger.allocated:
        return f"{text}, nothing allocated"
    return f"{text}, all of {size(ledger.allocated)} allocated"


def without_memory(device: DeviceInventory) -> str:
    """Return the headline of a device like ``meta``."""
    return f"{counted(device.count)}, no memory (would take {size(device.nbytes)})"


def change_headline(difference: Difference, device: str) -> str:
    """Return the changes of a device's tensors and of its allocated bytes."""
    roles = [role for role in difference.roles if role.device == device]
    before, after = sum(role.before for role in roles), sum(role.after for role in roles)
    text = f"{size(after - before, signed=True)} in tensors ({size(before)} to {size(after)})"
    ledger = difference.ledger.get(device)
    if not is_memory(device):
        return f"{size(after - before, signed=True)} in tensors that take no memory"
    if ledger is None:
        return text
    allocated, unnamed = ledger.change("allocated"), ledger.change("unnamed")
    return f"{text}, allocated {size(allocated, signed=True)}, unnamed {size(unnamed, signed=True)}"
