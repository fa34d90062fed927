"""Tensors as a treemap: a group for each role, a box for each tensor or family of tensors."""

from __future__ import annotations

from tensorlens.render.blocks import Box, Treemap
from tensorlens.render.colours import role_colour
from tensorlens.render.figures import counted, size
from tensorlens.render.source import printable
from tensorlens.render.view import View
from tensorlens.tensors.present.inventory import DeviceInventory, TensorRow, inventories
from tensorlens.tensors.snapshot import Snapshot

_PARTS = {"gradient": 3, "optimizer": 3}
"""Parts at the end of a name that tell what it is: ``fc.weight.grad``; else two."""
_BOXES = 150
"""So many of the largest tensors and families have boxes of their own."""


def treemap(snapshot: Snapshot, device: str, view: View) -> Treemap | None:
    """Return the treemap of a device, None where no tensor takes memory there.

    The smaller tensors share one box in each role, so that all of the view's bytes are drawn.
    """
    everything = View(top=None, roles=view.roles, devices=(device,))
    (found,) = (each for each in inventories(snapshot, everything) if each.device == device)
    return of_inventory(found)


def of_inventory(device: DeviceInventory) -> Treemap | None:
    """Return the treemap of all rows of an inventory, None where they take no memory."""
    rows = sorted((row for row in device.rows if row.after), key=lambda row: -row.after)
    roles: dict[str, list[Box]] = {}
    for row in rows[:_BOXES]:
        roles.setdefault(row.first.role, []).append(_box(row))
    rest: dict[str, list[TensorRow]] = {}
    for row in rows[_BOXES:]:
        rest.setdefault(row.first.role, []).append(row)
    for role, others in rest.items():
        nbytes = sum(row.after for row in others)
        text = f"{sum(row.count for row in others):,} smaller"
        tip = f"{counted(sum(row.count for row in others), 'smaller tensor')}, {size(nbytes)}"
        roles.setdefault(role, []).append(Box(text, size(nbytes), nbytes, role_colour(role), tip))
    if not roles:
        return None
    groups = []
    for role, boxes in roles.items():
        nbytes = sum(box.nbytes for box in boxes)
        tip = f"{role}: {size(nbytes)}"
        groups.append(Box(role, size(nbytes), nbytes, role_colour(role), tip, tuple(boxes)))
    return Treemap(f"Tensors on {device.device} by size", tuple(groups))


def _box(row: TensorRow) -> Box:
    name = printable(row.name) or "(no name)"
    name = f"{name} x {row.count:,}" if row.count > 1 else name
    tip = f"{name}\n{size(row.after)}, {row.first.dtype} {row.shape}".rstrip()
    # the module's path is much the same in all of them
    label = ".".join(name.split(".")[-_PARTS.get(row.first.role, 2) :])
    return Box(label, size(row.after), row.after, role_colour(row.first.role), tip)
