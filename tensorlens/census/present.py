"""What is shown of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.records.snapshots import Snapshot, View
from tensorlens.render.blocks import Block, Custom, Rows
from tensorlens.render.html.snapshot import snapshot_fragment
from tensorlens.render.html.treemap import treemap
from tensorlens.render.table import tensors
from tensorlens.render.text.snapshot import snapshot_parts


def title(snapshot: Snapshot) -> str:
    """Return the title of a page."""
    return "tensors in memory"


def blocks(snapshot: Snapshot, view: View) -> Sequence[Block]:
    """Return the tensors and the ledger of each device; a page has a treemap too."""
    return [
        Custom(
            lambda page: snapshot_parts(snapshot, page), lambda: snapshot_fragment(snapshot, view)
        ),
        Custom(page=lambda: treemap(snapshot, view)),
    ]


def rows(snapshot: Snapshot) -> Rows:
    """Return one row per tensor."""
    return Rows(tensors.COLUMNS, tensors.rows(snapshot.tensors), tensors.TEXT, (), ("storage",))
