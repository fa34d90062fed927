"""Snapshots as text: per device a headline, its roles, its tensors and its ledger."""

from __future__ import annotations

from tensorlens.census.present.headlines import headline, without_memory
from tensorlens.census.present.inventory import (
    DeviceInventory,
    device_sources,
    inventories,
    left_out,
)
from tensorlens.census.present.ledger_lines import ledger_lines
from tensorlens.census.present.tensor_lines import tensor_lines
from tensorlens.records.snapshots import Snapshot
from tensorlens.render.figures import counted, size
from tensorlens.render.source import width
from tensorlens.render.text.page import Page, aligned, padded, ruled


def snapshot_parts(snapshot: Snapshot, page: Page) -> list[str]:
    """Return the parts of the report: header, then several per device."""
    found = ["\n".join(_header(snapshot, page))]
    devices = inventories(snapshot, page.view)
    for device in devices:
        found += _device(device, page)
    if not devices and not left_out(snapshot, page.view):
        found[0] += "\n  no tensors found"
    others = [
        f"{page.shown(device)} ({size(nbytes)} in {counted(count)})"
        for device, count, nbytes in left_out(snapshot, page.view)
    ]
    if others:
        found.append("\n".join(page.wrapped("Not shown: ", ", ".join(others))))
    return found


def _header(snapshot: Snapshot, page: Page) -> list[str]:
    measured = snapshot.provenance == "measured"
    kind = "" if measured else f" ({page.shown(snapshot.provenance)})"
    process = f", {page.shown(snapshot.process)}" if snapshot.process else ""
    lines = page.wrapped(f"Tensors in memory{kind}{process}", "")
    devices = device_sources(snapshot.ledger)
    room = max((width(page.shown(names)) for names, _ in devices), default=0)
    for names, source in devices:
        lines += page.wrapped(f"  {padded(page.shown(names), room)}  ", page.shown(source))
    for note in snapshot.notes:
        lines += page.wrapped("  note: ", page.shown(note))
    return lines


def _device(device: DeviceInventory, page: Page) -> list[str]:
    if not device.is_memory:
        return ["\n".join(page.wrapped(f"{page.shown(device.device)}  ", without_memory(device)))]
    start = f"{page.shown(device.device)}  "
    tensors = tensor_lines(device.rows, device.hidden, page)
    if device.aliases and not page.view.verbose:
        share = "shares" if device.aliases == 1 else "share"
        text = f"{counted(device.aliases)} {share} the storage of another (verbose shows which)"
        tensors += page.wrapped("  ", text)
    head = page.wrapped(start, headline(device))
    return [
        "\n".join(head + role_lines(device, page)),
        "\n".join(tensors),
        "\n".join(ledger_lines(device.ledger, page)) if device.ledger else "",
    ]


def role_lines(device: DeviceInventory, page: Page) -> list[str]:
    """Return a table of how much each role takes on a device."""
    if not device.roles:
        return []
    cells = [["Role", "Tensors", "Size", "Share"]]
    for role in device.roles:
        share = f"{100 * role.nbytes / device.nbytes:.1f} %" if device.nbytes else ""
        cells.append([role.role, f"{role.count:,}", size(role.nbytes), share])
    return ruled(aligned(cells, (False, True, True, True), 2), page, 2)
