"""Presents a snapshot: per device a headline, its roles, its tensors and its ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from tensorlens.render.figures import counted, size
from tensorlens.render.view import View
from tensorlens.tensors.present import columns as table
from tensorlens.tensors.present.headlines import headline, without_memory
from tensorlens.tensors.present.inventory import (
    DeviceInventory,
    device_sources,
    inventories,
    left_out,
)
from tensorlens.tensors.present.tables import ledger_table, role_table, tensor_table
from tensorlens.tensors.present.treemap import treemap
from tensorlens.tensors.snapshot import Snapshot


def title(snapshot: Snapshot) -> str:
    """Return the title of a page."""
    return "tensors in memory"


def blocks(snapshot: Snapshot, view: View) -> Sequence[Block]:
    """Return the tensors and the ledger of each device; a page has a treemap too."""
    devices = inventories(snapshot, view)
    others = left_out(snapshot, view)
    nothing = () if devices or others else (Note("no tensors found"),)
    shown: list[Block] = [
        Section(
            (
                Heading("Tensors in memory", snapshot.provenance, snapshot.process),
                named(device_sources(snapshot.ledger)),
                *(Note(note, label="note") for note in snapshot.notes),
                *nothing,
            )
        ),
        *(
            device_section(device, headline(device), view, _map(snapshot, device, view))
            for device in devices
            if device.is_memory
        ),
        *(
            Section((), without_memory(device), device.device)
            for device in devices
            if not device.is_memory
        ),
    ]
    if others:
        totals = (f"{name} ({size(nbytes)} in {counted(count)})" for name, count, nbytes in others)
        shown.append(Paragraph(f"Not shown: {', '.join(totals)}"))
    return shown


def device_section(
    device: DeviceInventory, headline: str, view: View, picture: tuple[Block, ...] = ()
) -> Section:
    """Return what is shown of a device that has memory, a picture on top."""
    shown = (*picture, *_device(device, view))
    return Section(shown, headline, device.device, is_parted=True)


def _map(snapshot: Snapshot, device: DeviceInventory, view: View) -> tuple[Block, ...]:
    def drawn() -> list[Block]:
        found = treemap(snapshot, device.device, view)
        return [found] if found else []

    return (Only(("page",), drawn),)


def rows(snapshot: Snapshot) -> Rows:
    """Return one row per tensor."""
    return Rows(table.COLUMNS, table.rows(snapshot.tensors), table.TEXT, (), ("storage",))


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
