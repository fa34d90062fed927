"""What changed between two snapshots, as HTML."""

from __future__ import annotations

from tensorlens.census.present.balance import balance_change, unknown_changes
from tensorlens.census.present.headlines import change_headline
from tensorlens.census.present.inventory import devices_changed, is_memory, sections
from tensorlens.records.differences import Difference
from tensorlens.records.snapshots import View
from tensorlens.render.html.templates import environment


def difference_fragment(difference: Difference, view: View) -> str:
    """Return the difference as one ``<div>``."""
    devices = devices_changed(difference)
    ledgers = difference.ledger
    return (
        environment()
        .get_template("difference.html")
        .render(
            difference=difference,
            view=view,
            changed=any(changes for _, changes in difference.kinds()),
            devices=[
                {
                    "name": device,
                    "headline": change_headline(difference, device),
                    "roles": [
                        role
                        for role in difference.roles
                        if role.device == device and is_memory(device)
                    ],
                    "sections": sections(difference, device, view) if is_memory(device) else (),
                    "ledger": balance_change(ledgers[device]) if device in ledgers else (),
                    "unknown": unknown_changes(ledgers[device]) if device in ledgers else (),
                }
                for device in devices
                if view.shows_device(device)
            ],
            others=[
                (device, change_headline(difference, device))
                for device in devices
                if not view.shows_device(device)
            ],
        )
    )
