"""Snapshots as HTML."""

from __future__ import annotations

from tensorlens.census.present.balance import balance, unknown, unnamed_blocks
from tensorlens.census.present.headlines import headline, without_memory
from tensorlens.census.present.inventory import device_sources, inventories, left_out
from tensorlens.records.snapshots import Snapshot, View
from tensorlens.render.html.templates import environment


def snapshot_fragment(snapshot: Snapshot, view: View) -> str:
    """Return the snapshot as one ``<div>``."""
    devices = inventories(snapshot, view)
    return (
        environment()
        .get_template("snapshot.html")
        .render(
            snapshot=snapshot,
            view=view,
            header=device_sources(snapshot.ledger),
            devices=[
                {
                    "inventory": device,
                    "headline": headline(device) if device.is_memory else without_memory(device),
                    "ledger": balance(device.ledger) if device.ledger else (),
                    "unknown": unknown({"": device.ledger}) if device.ledger else (),
                    "blocks": unnamed_blocks(device.ledger, all_=view.verbose)
                    if device.ledger
                    else ((), ""),
                }
                for device in devices
            ],
            others=left_out(snapshot, view),
        )
    )
