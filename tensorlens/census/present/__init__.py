"""What is shown of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.census.present import columns as table
from tensorlens.census.present.snapshot_html import snapshot_fragment
from tensorlens.census.present.snapshot_text import snapshot_parts
from tensorlens.census.present.treemap import treemap
from tensorlens.records.snapshots import Snapshot, View
from tensorlens.render.blocks import Block, Custom, Rows


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
    return Rows(table.COLUMNS, table.rows(snapshot.tensors), table.TEXT, (), ("storage",))
