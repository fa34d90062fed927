"""What is shown of the difference of two snapshots."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.census.present.columns import CHANGE_COLUMNS, CHANGE_TEXT, change_rows
from tensorlens.census.present.difference_html import difference_fragment
from tensorlens.census.present.difference_text import difference_parts
from tensorlens.records.differences import Difference
from tensorlens.records.snapshots import View
from tensorlens.render.blocks import Block, Custom, Rows


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
        CHANGE_COLUMNS,
        change_rows(difference),
        CHANGE_TEXT,
        (),
        ("storage",),
    )
