"""What is shown of the difference of two snapshots."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.records.differences import Difference
from tensorlens.records.snapshots import View
from tensorlens.render.blocks import Block, Custom, Rows
from tensorlens.render.html.difference import difference_fragment
from tensorlens.render.table import tensors
from tensorlens.render.text.difference import difference_parts


def title(difference: Difference) -> str:
    """Return the title of a page."""
    return "what changed in memory"


def blocks(difference: Difference, view: View) -> Sequence[Block]:
    """Return what appeared, went and grew on each device."""
    return [
        Custom(
            lambda page: difference_parts(difference, page),
            lambda: difference_fragment(difference, view),
        )
    ]


def rows(difference: Difference) -> Rows:
    """Return one row per change."""
    return Rows(
        tensors.CHANGE_COLUMNS,
        tensors.change_rows(difference),
        tensors.CHANGE_TEXT,
        (),
        ("storage",),
    )
