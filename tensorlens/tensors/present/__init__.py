"""Presents a snapshot: per device a headline, its roles, a treemap, its tensors and its ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.records.names import readable_name
from tensorlens.records.tensors import FIELDS
from tensorlens.render.blocks import (
    Block,
    Heading,
    Note,
    Only,
    Paragraph,
    Rows,
    Section,
    named,
)
from tensorlens.render.figures import counted, device_sources, size
from tensorlens.render.pictures import Box, Treemap, role_colour
from tensorlens.render.shown import View
from tensorlens.render.source import printable
from tensorlens.tensors.present.inventory import (
    DeviceInventory,
    TensorRow,
    headline,
    inventories,
    left_out,
    without_memory,
)
from tensorlens.tensors.present.tables import field, ledger_table, role_table, tensor_table
from tensorlens.tensors.snapshot import Snapshot

_TEXT = tuple(
    name for name in FIELDS if name not in ("nbytes", "storage", "storage_nbytes", "offset")
)

TITLE = "tensors in memory"


def blocks(snapshot: Snapshot, view: View) -> Sequence[Block]:
    """Return the tensors and the ledger of each device; on a page also a treemap."""
    devices = inventories(snapshot, view)
    others = left_out(snapshot, view)
    nothing = () if devices or others else (Note("no tensors found"),)
    ledgers = snapshot.ledger.items()
    sources = ((name, ledger.source, ledger.precision) for name, ledger in ledgers)
    shown: list[Block] = [
        Section(
            (
                Heading("Tensors in memory", snapshot.provenance, snapshot.process),
                named(device_sources(sources)),
                *(Note(note, label="note") for note in snapshot.notes),
                *nothing,
            )
        ),
        *(
            device_section(device, headline(device), view, _pictures(snapshot, device, view))
            if device.is_memory
            else Section((), without_memory(device), device.device)
            for device in devices
        ),
    ]
    if others:
        totals = (f"{name} ({size(nbytes)} in {counted(count)})" for name, count, nbytes in others)
        shown.append(Paragraph(f"Not shown: {', '.join(totals)}"))
    return shown


def device_section(
    device: DeviceInventory, headline: str, view: View, picture: tuple[Block, ...] = ()
) -> Section:
    """Return the section of a device that has memory, with a picture on top."""
    shown = (*picture, *_device(device, view))
    return Section(shown, headline, device.device, is_parted=True)


def _pictures(snapshot: Snapshot, device: DeviceInventory, view: View) -> tuple[Only]:
    name = device.device
    return (Only(("page",), lambda: [*filter(None, (treemap(snapshot, name, view),))]),)


def rows(snapshot: Snapshot) -> Rows:
    """Return one row per tensor."""
    values = (tuple(field(tensor, name) for name in FIELDS) for tensor in snapshot.tensors)
    return Rows(FIELDS, values, _TEXT, unsigned=("storage",))


def _device(device: DeviceInventory, view: View) -> Iterator[Block]:
    if device.roles:
        yield role_table(device)
    tensors: list[Block] = [tensor_table(device.rows, device.hidden, view)]
    if device.aliases and not view.verbose:
        share = "shares" if device.aliases == 1 else "share"
        text = f"{counted(device.aliases)} {share} the storage of another (verbose shows which)"
        tensors.append(Note(text, "soft"))
    if device.rows or device.hidden or device.aliases:
        yield Section(tuple(tensors))
    if device.ledger:
        yield ledger_table(device.ledger, view)


_LABEL_PARTS = {"gradient": 3, "optimizer": 3}
"""Role to how many last parts of a name label a box: ``fc.weight.grad``; two for others."""
_MAX_BOXES = 150
"""Number of the largest tensors and families with boxes of their own."""


def treemap(snapshot: Snapshot, device: str, view: View) -> Treemap | None:
    """Return the treemap of a device; None if no tensor takes memory there.

    The smaller tensors share one box in each role, so that all bytes of the view are drawn.
    """
    everything = View(top=None, roles=view.roles, devices=(device,))
    (inventory,) = (each for each in inventories(snapshot, everything) if each.device == device)
    rows = sorted((row for row in inventory.rows if row.after), key=lambda row: -row.after)
    groups = []
    for role in dict.fromkeys(row.first.role for row in rows):
        colour = role_colour(role)
        boxes = [_box(row) for row in rows[:_MAX_BOXES] if row.first.role == role]
        if others := [row for row in rows[_MAX_BOXES:] if row.first.role == role]:
            nbytes, count = sum(row.after for row in others), sum(row.count for row in others)
            tip = f"{counted(count, 'smaller tensor')}, {size(nbytes)}"
            boxes.append(Box(f"{count:,} smaller", size(nbytes), nbytes, colour, tip))
        nbytes = sum(box.nbytes for box in boxes)
        tip = f"{role}: {size(nbytes)}"
        groups.append(Box(role, size(nbytes), nbytes, colour, tip, tuple(boxes)))
    return Treemap(f"Tensors on {device} by size", tuple(groups)) if groups else None


def _box(row: TensorRow) -> Box:
    name = printable(readable_name(row.name)) or "(no name)"
    name = f"{name} x {row.count:,}" if row.count > 1 else name
    tip = f"{name}\n{size(row.after)}, {row.first.dtype} {row.shape}".rstrip()
    # the beginnings of module paths are much alike
    label = ".".join(name.split(".")[-_LABEL_PARTS.get(row.first.role, 2) :])
    return Box(label, size(row.after), row.after, role_colour(row.first.role), tip)
