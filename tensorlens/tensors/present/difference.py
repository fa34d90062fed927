"""Presents the difference of two snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.records.families import families
from tensorlens.records.names import readable_name
from tensorlens.render.blocks import Block, Heading, Note, Paragraph, Rows, Section
from tensorlens.render.figures import counted, size
from tensorlens.render.shown import View
from tensorlens.render.source import printable
from tensorlens.roles import ROLES
from tensorlens.tensors.difference import Changes, Difference
from tensorlens.tensors.present.inventory import (
    change_headline,
    changed_rows,
    devices_changed,
    is_memory,
)
from tensorlens.tensors.present.tables import field, ledger_changes, role_change_table, tensor_table

_ACTIVATION = ROLES.index("activation")
_MOST_HOLDERS = 2
"""Number of containers that are named; if there are more, only the table has them."""
_IDENTITY_COLUMNS = ("name", "role", "device", "dtype")
_DETAIL_COLUMNS = ("born", "model_line", "held_by", "names", "module", "note")
_BYTES = ("bytes_before", "bytes_after", "bytes_change")
_COLUMNS = (
    *("change", *_IDENTITY_COLUMNS, "shape_before", "shape_after"),
    *_BYTES,
    *_DETAIL_COLUMNS,
)
"""Columns of a difference: ``change`` is ``appeared``, ``gone`` or ``grown`` (larger or smaller),
bytes are the storage's, all others are the later tensor's if there is one."""

_TEXT = tuple(name for name in _COLUMNS if name not in _BYTES)

TITLE = "changes in memory"


def blocks(difference: Difference, view: View) -> Sequence[Block]:
    """Return what appeared, went and grew on each device."""
    changed = any(changes for _, changes in difference.kinds())
    nothing = () if changed else (Note("no tensor appeared, went or changed its size"),)
    notes = (Note(note, label="note") for note in difference.notes)
    heading = Heading("Changes in memory", process=difference.process)
    shown: list[Block] = [Section((heading, *notes, *nothing))]
    others = []
    for device in devices_changed(difference):
        if view.shows_device(device):
            parts = tuple(_device(difference, device, view)) if is_memory(device) else ()
            headline = change_headline(difference, device)
            shown.append(Section(parts, headline, device, is_parted=True))
        else:
            change = sum(role.change for role in difference.roles if role.device == device)
            others.append(f"{device} ({size(change, signed=True)})")
    if others:
        shown.append(Paragraph(f"Not shown: {', '.join(others)}"))
    return shown


def rows(difference: Difference) -> Rows:
    """Return one row per change."""
    return Rows(_COLUMNS, _rows(difference), _TEXT)


def _rows(difference: Difference) -> Iterator[tuple[str | int | None, ...]]:
    """Yield the values of :data:`_COLUMNS` for every change."""
    for kind, changes in difference.kinds():
        for change in changes:
            before, after, tensor = change.before, change.after, change.tensor
            yield (
                kind,
                *(field(tensor, name) for name in _IDENTITY_COLUMNS),
                None if before is None else str(before.shape),
                None if after is None else str(after.shape),
                0 if before is None else before.storage_nbytes,
                0 if after is None else after.storage_nbytes,
                change.nbytes,
                *(field(tensor, name) for name in _DETAIL_COLUMNS),
            )


def _device(difference: Difference, device: str, view: View) -> Iterator[Block]:
    roles = [role for role in difference.roles if role.device == device]
    if roles:
        yield role_change_table(roles)
    for kind, changes in difference.kinds():
        (count, nbytes), rows, hidden = changed_rows(kind, changes, device, view)
        if count:
            what = "changed size" if kind == "grown" else kind
            note = Note(f"{counted(count)} {what}, {size(nbytes, signed=True)}")
            graphs = _graph_holders(changes, device) if kind == "appeared" else ()
            yield Section((note, *map(Note, graphs), tensor_table(rows, hidden, view, kind)))
    ledger = difference.ledger.get(device)
    if ledger is not None:
        yield ledger_changes(ledger)


def _graph_holders(changes: Changes, device: str) -> Iterator[str]:
    """Yield a remark on new items of containers that may keep tensors that autograd saved."""
    table = changes.after
    saved, items = list[int](), list[int]()
    for row in changes.after_rows:
        if table.devices[table.device[row]] != device or table.role[row] != _ACTIVATION:
            continue
        name = table.names[table.name[row]]
        if readable_name(name) != name:
            saved.append(row)
        elif name.endswith("]"):
            items.append(row)
    holders = [
        printable(each.name) + (f" x {len(each.rows):,}" if len(each.rows) > 1 else "")
        for each in families(table, items)
    ]
    if saved and 0 < len(holders) <= _MOST_HOLDERS:
        what = f"{counted(len(saved))}, {size(sum(table.storage_nbytes[row] for row in saved))}"
        yield f"{' and '.join(holders)} may keep the autograd graphs that saved {what}"
